//! Our reader of layers against the kernel's, and against damage.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

use image::{
    Limits,
    erofs::{Entry, Kind, Writer, read::Reader},
    union::{Hides, Union},
};
use proptest::prelude::*;
use rustix::fs::makedev;

use crate::{
    snapshot::{Facts, Snapshot},
    *,
};

/// What the reader tells of a layer, in the kernel's words.
pub fn snapshot(layer: Reader) -> Snapshot {
    let layers = [layer];
    let mut union = Union::new(&layers, Hides::All, &Limits::default());
    let mut firsts = HashMap::new();
    let mut snapshot = Snapshot::new();
    let mut subdirectories = BTreeMap::<PathBuf, u64>::new();
    while let Some(item) = union.next_item().unwrap() {
        let path = PathBuf::from(OsString::from_vec(item.entry.path.clone()));
        let node = &item.node;
        let is_directory = node.is_directory();
        if is_directory && let Some(parent) = path.parent() {
            *subdirectories.entry(parent.to_owned()).or_default() += 1;
        }
        let first = match &item.entry.kind {
            Kind::Hardlink(first) => PathBuf::from(OsString::from_vec(first.clone())),
            _ => path.clone(),
        };
        // The walk's order is by names, the kernel's snapshot sorts paths: the first of either, made one.
        let first = if is_directory { path.clone() } else { firsts.entry(node.nid).or_insert(first).clone() };
        let facts = facts(node, first, || {
            let mut hasher = blake3::Hasher::new();
            io::copy(&mut union.data(&item), &mut hasher).unwrap();
            hasher.finalize()
        });
        snapshot.insert(path, facts);
    }
    for (path, facts) in &snapshot {
        if facts.mode & 0o170_000 == 0o040_000 {
            assert_eq!(facts.links, 2 + subdirectories.get(path).copied().unwrap_or_default(), "{path:?}");
        }
    }
    by_first_path(snapshot)
}

/// Of names of one inode, the first as paths sort.
fn by_first_path(mut snapshot: Snapshot) -> Snapshot {
    let mut firsts = HashMap::new();
    for (path, facts) in &mut snapshot {
        facts.first = firsts.entry(facts.first.clone()).or_insert_with(|| path.clone()).clone();
    }
    snapshot
}

fn facts(node: &image::erofs::read::Node, first: PathBuf, content: impl FnOnce() -> blake3::Hash) -> Facts {
    let (types, rdev, target) = match &node.kind {
        Kind::File => (0o100_000, 0, None),
        Kind::Directory => (0o040_000, 0, None),
        Kind::Symlink(target) => (0o120_000, 0, Some(OsString::from_vec(target.clone()).into())),
        Kind::Char { major, minor } => (0o020_000, makedev(*major, *minor), None),
        Kind::Block { major, minor } => (0o060_000, makedev(*major, *minor), None),
        Kind::Fifo => (0o010_000, 0, None),
        Kind::Socket => (0o140_000, 0, None),
        Kind::Hardlink(_) => panic!("an inode is no name"),
    };
    let xattrs = node.xattrs.iter().cloned();
    Facts {
        mode: types | node.mode,
        owner: (node.uid, node.gid),
        size: if node.is_directory() { 0 } else { node.size },
        mtime: (node.mtime_s, node.mtime_ns.into()),
        rdev,
        links: node.links.into(),
        first,
        content: (node.kind == Kind::File).then(content),
        target,
        xattrs: xattrs.map(|(name, value)| (OsString::from_vec(name), value)).collect(),
    }
}

/// Reads all of a layer; what is wrong is an error of a name.
fn read_all(meta: &Path, blob: Option<&Path>) -> Result<u64, image::Error> {
    let limits = Limits { entries_max: 10_000, tree_bytes_max: 1 << 20, bytes_max: 64 << 20 };
    let layers = [Reader::open(meta, blob)?];
    let mut union = Union::new(&layers, Hides::All, &limits);
    let mut bytes = 0;
    while let Some(item) = union.next_item()? {
        if !matches!(item.entry.kind, Kind::Hardlink(_)) {
            let mut data = Vec::new();
            let read = union.data(&item).take(1 << 20).read_to_end(&mut data);
            bytes += read.map_err(|e| *e.into_inner().unwrap().downcast::<image::Error>().unwrap())? as u64;
        }
    }
    Ok(bytes)
}

fn entry(path: &str, kind: Kind) -> Entry {
    let xattrs = vec![(b"user.x".to_vec(), b"value".to_vec())];
    Entry { path: path.into(), kind, mode: 0o750, uid: 1, gid: 2, mtime_s: -3, mtime_ns: 4, xattrs }
}

/// A layer with all that a layer may have.
fn write(dir: &Path) -> (PathBuf, PathBuf) {
    let (meta, blob) = (dir.join("meta"), dir.join("blob"));
    let mut writer = Writer::create(&meta, &blob, &Limits::default()).unwrap();
    let mut add = |path: &str, kind, data: &[u8]| writer.add(entry(path, kind), &mut &*data).unwrap();
    add("d", Kind::Directory, b"");
    for i in 0..200 {
        add(&format!("d/a-name-that-is-long-enough-for-two-blocks-{i:03}"), Kind::Fifo, b"");
    }
    add("d/file", Kind::File, &synthetic::patterned(300_000));
    let mut holed = synthetic::patterned(600_000);
    holed[0..262_144].fill(0);
    add("holed", Kind::File, &holed);
    add("d/link", Kind::Hardlink(b"d/file".to_vec()), b"");
    add("s", Kind::Symlink(vec![b't'; 4000]), b"");
    add("short", Kind::Symlink(b"target".to_vec()), b"");
    add("gone", Kind::Char { major: 0, minor: 0 }, b"");
    add("disk", Kind::Block { major: 259, minor: 70_000 }, b"");
    add("empty", Kind::File, b"");
    add("deep/er/and/deeper", Kind::Socket, b"");
    writer.finish().unwrap();
    (meta, blob)
}

/// Makes the superblock's checksum right again, so that more than the checksum is tested.
fn reseal(meta: &mut [u8]) {
    if meta.len() >= 4096 {
        meta[1028..1032].fill(0);
        let sum = meta[1024..4096].iter().fold(!0u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
        });
        meta[1028..1032].copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn what_was_written_is_read_and_a_cut_file_is_an_error() {
    let dir = scratch();
    let (meta, blob) = write(dir.path());
    assert_eq!(read_all(&meta, Some(&blob)).unwrap(), 900_000);
    assert!(matches!(read_all(&meta, None), Err(image::Error::Damaged(_))));
    let whole = fs::read(&meta).unwrap();
    for len in (0..whole.len()).step_by(97) {
        fs::write(&meta, &whole[..len]).unwrap();
        let error = read_all(&meta, Some(&blob)).unwrap_err();
        assert!(matches!(error, image::Error::Damaged(_)), "{len}: {error:?}");
    }
}

#[test]
fn a_directory_in_itself_is_an_error() {
    let dir = scratch();
    let (meta, blob) = write(dir.path());
    let mut bytes = fs::read(&meta).unwrap();
    // `er` of `deep` is made to lead to the root, by the number in its dirent.
    let root = u64::from(u16::from_le_bytes([bytes[1038], bytes[1039]]));
    let at = bytes.windows(5).position(|w| w == b"...er").unwrap() - 12;
    bytes[at..at + 8].copy_from_slice(&root.to_le_bytes());
    fs::write(&meta, bytes).unwrap();
    let error = read_all(&meta, Some(&blob)).unwrap_err();
    assert!(matches!(error, image::Error::Damaged("a directory has two names")), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes are changed where a layer has some: in its inodes and names, not in padding alone.
    #[test]
    fn a_damaged_layer_is_read_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let dir = scratch();
        let (meta, blob) = write(dir.path());
        let mut bytes = fs::read(&meta).unwrap();
        let filled: Vec<usize> = (1024..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        for (at, value) in changes {
            bytes[filled[at.index(filled.len())]] = value;
        }
        reseal(&mut bytes);
        fs::write(&meta, bytes).unwrap();
        if let Err(error) = read_all(&meta, Some(&blob)) {
            prop_assert!(matches!(error, image::Error::Damaged(_)), "{error:?}");
        }
    }
}
