//! Merged layers against the kernel's overlay of the layers as they were.

use std::{fs, ops::Range};

use api::{
    Code,
    image::{ImageInfo, MergeRequest},
};
use image::{
    Catalogue, Limits,
    erofs::{Entry, Kind, Writer, read::Reader},
    merge::{Below, merge},
};
use proptest::prelude::*;

use crate::{archive::Tar, *};

#[derive(Debug, Clone)]
enum Act {
    File(u8, usize),
    Directory { opaque: bool },
    Whiteout,
    Symlink,
    Fifo,
    Link(String),
}

#[derive(Debug, Clone)]
struct Step {
    path: String,
    act: Act,
    mode: u32,
    xattr: bool,
}

/// Few names, so that layers meet.
fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        4 => (1u8..5, prop_oneof![0usize..9, 4090usize..4100, 262_140usize..262_150]).prop_map(|(s, n)| Act::File(s, n)),
        3 => any::<bool>().prop_map(|opaque| Act::Directory { opaque }),
        3 => Just(Act::Whiteout),
        1 => Just(Act::Symlink),
        1 => Just(Act::Fifo),
        2 => path().prop_map(Act::Link),
    ];
    (path(), act, 0u32..0o10000, any::<bool>()).prop_map(|(path, act, mode, xattr)| Step {
        path,
        act,
        mode,
        xattr,
    })
}

/// What a step asks in vain (a file under a file, say) is left out.
fn build(dir: &Path, number: usize, steps: &[Step]) -> Files {
    let files = Files { meta: dir.join(format!("meta-{number}")), blob: dir.join(format!("blob-{number}")) };
    let mut writer = Writer::create(&files.meta, &files.blob, &Limits::default()).unwrap();
    for (at, step) in steps.iter().enumerate() {
        let (mut xattrs, mut data) = (Vec::new(), Vec::new());
        let kind = match &step.act {
            Act::File(seed, size) => {
                data = (0..*size).map(|i| (i / 5) as u8 ^ seed).collect();
                Kind::File
            }
            Act::Directory { opaque } => {
                if *opaque {
                    xattrs.push((b"trusted.overlay.opaque".to_vec(), b"y".to_vec()));
                }
                Kind::Directory
            }
            Act::Whiteout => Kind::Char { major: 0, minor: 0 },
            Act::Symlink => Kind::Symlink(b"a/b".to_vec()),
            Act::Fifo => Kind::Fifo,
            Act::Link(target) => Kind::Hardlink(target.clone().into_bytes()),
        };
        if step.xattr {
            xattrs.push((b"trusted.of".to_vec(), format!("layer {number}").into_bytes()));
        }
        let (uid, gid) = (number as u32, at as u32);
        let path = step.path.clone().into_bytes();
        let mtime_s = 1_000_000 + at as i64;
        let entry = Entry { path, kind, mode: step.mode, uid, gid, mtime_s, mtime_ns: 7, xattrs };
        let _ = writer.add(entry, &mut &data[..]);
    }
    writer.finish().unwrap();
    files
}

#[derive(Clone)]
struct Files {
    meta: std::path::PathBuf,
    blob: std::path::PathBuf,
}

impl Files {
    fn blob(&self) -> Option<&Path> {
        self.blob.exists().then_some(&*self.blob)
    }
    fn reader(&self) -> Reader {
        Reader::open(&self.meta, self.blob()).unwrap()
    }
}

fn of_built(built: &Built) -> Files {
    Files { meta: built.meta(), blob: built.dir.join(image::import::BLOB) }
}

/// As overlayfs shows it, without what it makes up itself: the numbers of links.
fn shown(layers: &[Files]) -> snapshot::Snapshot {
    let mounts: Vec<_> = layers.iter().map(|files| kernel::mount(&files.meta, files.blob())).collect();
    let mut names = snapshot::take(&kernel::overlay(&mounts).path());
    names.values_mut().for_each(|facts| facts.links = 0);
    names
}

fn merged(dir: &Path, layers: &[Files], range: Range<usize>) -> Vec<Files> {
    let below = if range.start == 0 { Below::Nothing } else { Below::Something };
    let readers: Vec<_> = layers[range.clone()].iter().map(Files::reader).collect();
    let built = merge(&readers, below, &Limits::default(), dir, 0).unwrap();
    fsck(&built);
    let mut all = layers.to_vec();
    all.splice(range, [of_built(&built)]);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_merge_shows_what_the_layers_showed(
        stack in proptest::collection::vec(proptest::collection::vec(step(), 0..14), 2..6),
        ends in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let dir = scratch();
        let mut layers: Vec<_> = stack.iter().enumerate().map(|(n, steps)| build(dir.path(), n, steps)).collect();
        // overlayfs takes no single layer: an empty one lies over all.
        layers.push(build(dir.path(), layers.len(), &[]));
        let start = ends.0.index(stack.len() - 1);
        let end = start + 2 + ends.1.index(stack.len() - 1 - start);
        let after = merged(dir.path(), &layers, start..end);
        prop_assert_eq!(after.len(), layers.len() - (end - start) + 1);
        snapshot::assert_equal(&shown(&layers), &shown(&after));
    }
}

#[test]
fn what_a_merge_hides_takes_no_room() {
    let dir = scratch();
    let file = |n| Step { path: "a/b".into(), act: Act::File(n, 262_144), mode: 0o644, xattr: false };
    let gone = Step { path: "a".into(), act: Act::Whiteout, mode: 0, xattr: false };
    let layers =
        [build(dir.path(), 0, &[file(1)]), build(dir.path(), 1, &[file(2)]), build(dir.path(), 2, &[gone])];
    let readers: Vec<_> = layers.iter().map(Files::reader).collect();
    let two = merge(&readers[..2], Below::Nothing, &Limits::default(), dir.path(), 0).unwrap();
    assert_eq!(two.summary.blob_bytes, 262_144);
    let all = merge(&readers, Below::Nothing, &Limits::default(), dir.path(), 1).unwrap();
    assert_eq!((all.summary.blob_bytes, all.summary.files), (0, 1), "the root alone");
    let over = merge(&readers, Below::Something, &Limits::default(), dir.path(), 2).unwrap();
    assert_eq!(
        (over.summary.blob_bytes, over.summary.files),
        (0, 2),
        "the whiteout stays for what lies below"
    );
}

fn image_of_three(catalogue: &Catalogue, kind: LayerKind) -> ImageInfo {
    let layers = vec![
        Tar::new().dir("etc").file("etc/kept", "1").file("etc/gone", "1").bytes(),
        Tar::new().file("etc/.wh.gone", "").file("big", &"2".repeat(300_000)).bytes(),
        Tar::new().file("etc/kept", "3").file(".wh.never", "").bytes(),
    ];
    let query = ImportQuery::new("image", kind);
    catalogue.import_reader(&query, &oci::Layout::new(layers).bytes()[..]).unwrap()
}

fn request(version: &str, threshold_bytes: u64) -> MergeRequest {
    MergeRequest { threshold_bytes, ..MergeRequest::new(version) }
}

fn files(catalogue: &Catalogue, reference: &str) -> Vec<Files> {
    let image = catalogue.resolve(reference, None).unwrap();
    let files = |layer: &image::LayerFiles| Files {
        meta: layer.meta.clone(),
        blob: layer.blob.clone().unwrap_or_else(|| layer.meta.with_file_name("none")),
    };
    image.layers.iter().map(files).collect()
}

#[test]
fn an_image_is_merged_under_a_new_version() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let old = image_of_three(&catalogue, LayerKind::Base);
    assert_eq!(old.layers.len(), 3);
    let top = build(dir.path(), 9, &[]);
    let with_top = |mut layers: Vec<Files>| {
        layers.push(top.clone());
        shown(&layers)
    };
    let new = catalogue.merge("image", &request("small", u64::MAX)).unwrap();
    assert_eq!((new.name.as_str(), new.version.as_str(), new.layers.len()), ("image", "small", 1));
    assert_eq!((&new.config, new.kind), (&old.config, old.kind));
    snapshot::assert_equal(
        &with_top(files(&catalogue, "image")),
        &with_top(files(&catalogue, "image:small")),
    );
    // Two of three: the large layer stays as it is, and is shared.
    let part = catalogue.merge(&old.digest, &request("part", 320_000)).unwrap();
    assert_eq!(part.layers.len(), 2);
    snapshot::assert_equal(&with_top(files(&catalogue, "image")), &with_top(files(&catalogue, "image:part")));
    // Equal work makes an equal layer.
    assert_eq!(catalogue.merge("image", &request("again", u64::MAX)).unwrap().digest, new.digest);
    drop(catalogue);
    let catalogue = Catalogue::open(dir.path()).unwrap();
    assert_eq!(catalogue.inspect("image:small").unwrap(), new);
    catalogue.remove("image:latest", &|_| false).unwrap();
    assert!(files(&catalogue, "image:part").iter().all(|files| files.meta.exists()), "what it kept stays");
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_merged_workspace_still_hides_what_a_base_has() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    image_of_three(&catalogue, LayerKind::Workspace);
    let base = Step { path: "never".into(), act: Act::File(1, 4), mode: 0o644, xattr: false };
    let base = build(dir.path(), 0, &[base]);
    catalogue.merge("image", &request("small", u64::MAX)).unwrap();
    let over_base = |reference| shown(&[&[base.clone()][..], &files(&catalogue, reference)].concat());
    let names = over_base("image:small");
    snapshot::assert_equal(&over_base("image"), &names);
    assert!(!names.contains_key(Path::new("never")));
}

#[test]
fn merges_that_cannot_be() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    image_of_three(&catalogue, LayerKind::Base);
    let code =
        |reference: &str, request: MergeRequest| catalogue.merge(reference, &request).unwrap_err().code;
    assert_eq!(code("nobody", MergeRequest::new("x")), Code::NotFound);
    assert_eq!(code("image", MergeRequest::new("latest")), Code::AlreadyExists);
    assert_eq!(code("image", MergeRequest::new("../x")), Code::InvalidArgument);
    assert_eq!(code("image", request("x", 0)), Code::InvalidArgument, "no two are small enough");
    catalogue.merge("image", &MergeRequest::new("one")).unwrap();
    assert_eq!(code("image:one", MergeRequest::new("x")), Code::InvalidArgument, "one layer");
    assert_eq!(catalogue.list().len(), 2);
    // A damaged layer ends it with an error that tells so, and leaves nothing.
    let meta = &files(&catalogue, "image")[1].meta;
    let mut bytes = fs::read(meta).unwrap();
    bytes[1030] ^= 1;
    fs::write(meta, bytes).unwrap();
    let error = catalogue.merge("image", &MergeRequest::new("x")).unwrap_err();
    assert!(error.code == Code::Internal && error.message.contains("damaged"), "{error}");
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}
