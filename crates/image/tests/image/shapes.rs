//! Archives and trees at the bounds of what fits, and just beyond: as many entries, as long a path, as deep a tree; whiteouts
//! of odd names. What fits is whole, what does not is a named error that leaves nothing.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use api::{Code, image::ImportFormat, snapshot::PackRequest};
use image::{Catalogue, Under};

use crate::{archive::Tar, *};

fn catalogue() -> (tempfile::TempDir, Catalogue) {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    (dir, catalogue)
}

/// The error's text, and nothing of the disk's of the node; nothing is left.
fn refused(work: impl FnOnce(&Catalogue) -> Result<(), api::Error>) -> String {
    let (dir, catalogue) = catalogue();
    let bytes = disk_bytes(dir.path());
    let files = fs::read_dir("/proc/self/fd").unwrap().count();
    let error = work(&catalogue).expect_err("it was accepted");
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(!error.message.contains("/var/tmp"), "a private path: {error}");
    assert!(error.message.len() < 600, "{error}");
    assert_eq!(disk_bytes(dir.path()), bytes, "{error}");
    // Other tests open and close files at the same time, but no hundred of them.
    assert!(fs::read_dir("/proc/self/fd").unwrap().count() < files + 100);
    error.message
}

fn refused_tar(bytes: &[u8]) -> String {
    refused(|catalogue| catalogue.import_reader(&query(), bytes).map(drop))
}

/// Of all that is below, directories not counted.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let of = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => disk_bytes(&entry.path()),
        metadata => metadata.blocks() * 512,
    };
    entries.map(of).sum()
}

#[test]
fn a_hundred_thousand_entries() {
    const COUNT: u64 = 100_000;
    let mut tar = Tar::new();
    for n in 0..COUNT {
        tar = tar.file(&format!("d{}/f{n}", n % 10), "");
    }
    let (dir, mounted) = archive::mounted(&tar.bytes(), &query());
    let count = |n: usize| fs::read_dir(mounted.path().join(format!("d{n}"))).unwrap().count();
    assert_eq!((0..10).map(count).collect::<Vec<_>>(), [10_000; 10]);
    assert!(mounted.path().join("d9/f99999").is_file() && !mounted.path().join("d9/f100009").exists());
    drop((mounted, dir));
}

#[test]
fn the_longest_path_and_one_byte_more() {
    // 2047 directories deep, and 4094 bytes; a name in it makes it 4095.
    let deep = "d/".repeat(2047);
    let path = format!("{deep}f");
    let tar = Tar::new().pax(&[("path", path.as_bytes())]).file("x", "at the end");
    // (fsck.erofs 1.5 dies of such a tree; the kernel is the judge.)
    let dir = scratch();
    let imported = import(&query(), &tar.bytes(), dir.path()).unwrap();
    let layer = &imported.layers[0];
    let mounted = kernel::mount(&layer.meta(), layer.blob().as_deref());
    // Longer than what one call takes, with the mount's own path before it.
    let half = fs::File::open(mounted.path().join("d/".repeat(1000))).unwrap();
    let rest = format!("/proc/self/fd/{}/{}f", std::os::fd::AsRawFd::as_raw_fd(&half), "d/".repeat(1047));
    assert_eq!(fs::read_to_string(rest).unwrap(), "at the end");
    let long = format!("{deep}fg");
    assert!(
        refused_tar(&Tar::new().pax(&[("path", long.as_bytes())]).file("x", "").bytes()).contains("4095")
    );
    let longest = "n".repeat(255);
    let tar = Tar::new().pax(&[("path", longest.as_bytes())]).file("x", "");
    let (_dir, mounted) = archive::mounted(&tar.bytes(), &query());
    assert!(mounted.path().join(longest).is_file());
    let target = "t".repeat(4096);
    assert!(
        refused_tar(&Tar::new().pax(&[("linkpath", target.as_bytes())]).symlink("s", "x").bytes())
            .contains("4095")
    );
}

/// A tree deeper than any path reaches, made as a program in a sandbox can.
fn abyss(top: &Path, depth: usize) {
    use rustix::fs::{Mode, OFlags};
    let mut at = fs::File::open(top).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", Mode::from(0o755)).unwrap();
        let below = rustix::fs::openat(&at, "d", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty());
        at = fs::File::from(below.unwrap());
    }
}

#[test]
fn a_tree_deeper_than_any_path() {
    let source = scratch();
    abyss(source.path(), 10_000);
    let said = refused(|catalogue| catalogue.import_dir(&query(), source.path()).map(drop));
    assert!(said.contains("4095") || said.contains("too long"), "{said}");
    let said = refused(|catalogue| {
        catalogue.pack(&PackRequest::new("p"), source.path(), Under::default()).map(drop)
    });
    assert!(said.contains("4095") || said.contains("too long"), "{said}");
    // tempfile removes it, however deep.
    source.close().unwrap();
}

#[test]
fn attributes_up_to_the_bound_and_beyond() {
    let named = |count: usize| {
        let value = [b'v'; 4000];
        let names: Vec<String> = (0..count).map(|n| format!("SCHILY.xattr.user.{n:03}")).collect();
        let records: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &value[..])).collect();
        Tar::new().pax(&records).file("f", "").bytes()
    };
    let (_dir, mounted) = archive::mounted(&named(60), &query());
    assert_eq!(xattr::list(mounted.path().join("f")).unwrap().count(), 60);
    assert!(refused_tar(&named(70)).contains("attributes"), "more than an inode can have");
    let name = format!("SCHILY.xattr.user.{}", "n".repeat(256));
    assert!(refused_tar(&Tar::new().pax(&[(&name, b"x")]).file("f", "").bytes()).contains("too large"));
}

fn layers(upper: Tar) -> Vec<u8> {
    let lower = Tar::new().dir("d/").file("d/f", "lower").file("g", "lower").symlink("l", "d");
    oci::Layout::new(vec![lower.bytes(), upper.bytes()]).bytes()
}

/// What the kernel's overlayfs shows of both layers.
fn shown(upper: Tar) -> Vec<String> {
    let dir = scratch();
    let imported = import(&query(), &layers(upper), dir.path()).unwrap();
    let mut mounts: Vec<_> =
        imported.layers.iter().map(|l| kernel::mount(&l.meta(), l.blob().as_deref())).collect();
    // One layer alone is no overlay.
    let mounted = if mounts.len() == 1 { mounts.remove(0) } else { kernel::overlay(&mounts) };
    let mut found = Vec::new();
    let mut queue = vec![mounted.path()];
    while let Some(at) = queue.pop() {
        for entry in fs::read_dir(at).unwrap().map(|e| e.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                queue.push(entry.path());
            }
            found.push(entry.path().strip_prefix(mounted.path()).unwrap().display().to_string());
        }
    }
    found.sort();
    found
}

#[test]
fn whiteouts_of_odd_names() {
    for name in [".wh.", ".wh..", ".wh...", "d/.wh."] {
        assert!(refused_tar(&layers(Tar::new().file(name, ""))).contains("whiteout of nothing"), "{name}");
    }
    for name in ["../.wh.g", "d/../../.wh.g", "../.wh..wh..opq"] {
        assert!(refused_tar(&layers(Tar::new().file(name, ""))).contains(".."), "{name}");
    }
    assert_eq!(shown(Tar::new().file(".wh.none", "")), ["d", "d/f", "g", "l"], "nothing is hidden");
    assert_eq!(shown(Tar::new().file(".wh.d", "")), ["g", "l"]);
    // A whiteout may be anything, and what it holds is nobody's.
    assert_eq!(shown(Tar::new().dir(".wh.d/").file("x", "")), ["g", "l", "x"]);
    assert_eq!(shown(Tar::new().symlink(".wh.g", "/etc/passwd")), ["d", "d/f", "l"]);
    assert_eq!(
        shown(Tar::new().file(".wh..wh.plnk", "").dir(".wh..wh.aufs/")),
        ["d", "d/f", "g", "l"],
        "reserved"
    );
    // Opaque, before or after what is new there.
    assert_eq!(shown(Tar::new().file("d/new", "").file("d/.wh..wh..opq", "")), ["d", "d/new", "g", "l"]);
    assert_eq!(shown(Tar::new().file("d/.wh..wh..opq", "").file("d/new", "")), ["d", "d/new", "g", "l"]);
    // A layer's own entry and its whiteout of that name: what is new stays.
    assert_eq!(shown(Tar::new().file(".wh.g", "").file("g", "upper")), ["d", "d/f", "g", "l"]);
    // In a plain tar they are names as any other.
    let plain = Tar::new().file(".wh.g", "").file("g", "").bytes();
    let tar = ImportQuery { format: ImportFormat::Tar, ..query() };
    let (_dir, mounted) = archive::mounted(&plain, &tar);
    assert!(mounted.path().join(".wh.g").is_file() && mounted.path().join("g").is_file());
}

/// overlayfs's own marks in an archive would be believed by the kernel.
#[test]
fn marks_of_overlayfs_in_an_archive() {
    let redirect = Tar::new().pax(&[("SCHILY.xattr.trusted.overlay.redirect", b"/d")]).dir("r/");
    let found = shown(redirect);
    assert!(!found.contains(&"r/f".to_owned()), "led to what another name hides: {found:?}");
    let metacopy = Tar::new().pax(&[("SCHILY.xattr.trusted.overlay.metacopy", b"")]).file("g", "upper");
    let dir = scratch();
    let imported = import(&query(), &layers(metacopy), dir.path()).unwrap();
    let mounts: Vec<_> =
        imported.layers.iter().map(|l| kernel::mount(&l.meta(), l.blob().as_deref())).collect();
    assert_eq!(fs::read_to_string(kernel::overlay(&mounts).path().join("g")).unwrap(), "upper");
}

#[test]
fn an_image_whose_parts_lead_in_circles_or_nowhere() {
    let manifest = |layer: &str| format!(r#"[{{"Config":"c.json","Layers":["{layer}"]}}]"#);
    let config = r#"{"rootfs":{"type":"layers","diff_ids":[]}}"#;
    let archive = |layer: &str| Tar::new().file("manifest.json", &manifest(layer)).file("c.json", config);
    let circle = archive("a/layer.tar")
        .symlink("a/layer.tar", "../b/layer.tar")
        .symlink("b/layer.tar", "../a/layer.tar");
    assert!(refused_tar(&circle.bytes()).contains("lacks"));
    for outside in ["../../../../etc/passwd", "/etc/passwd"] {
        assert!(refused_tar(&archive(outside).bytes()).contains("lacks"), "{outside}");
        let link = archive("a/layer.tar").symlink("a/layer.tar", outside);
        assert!(refused_tar(&link.bytes()).contains("lacks"), "{outside}");
    }
    let nested = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let image = ImportQuery { format: ImportFormat::OciArchive, ..query() };
    for name in ["manifest.json", "index.json"] {
        let bytes = Tar::new().file(name, &nested).file("oci-layout", "{}").bytes();
        assert!(refused(|catalogue| catalogue.import_reader(&image, &bytes[..]).map(drop)).contains(name));
    }
}

/// Nothing that a name leads to elsewhere is read.
#[test]
fn a_directory_with_ways_out() {
    let source = scratch();
    symlink("/etc", source.path().join("etc")).unwrap();
    symlink("/etc/shadow", source.path().join("shadow")).unwrap();
    let (dir, catalogue) = catalogue();
    let info = catalogue.import_dir(&query(), source.path()).unwrap();
    assert_eq!((info.files, disk_bytes(&dir.path().join("layers")) < 1 << 16), (3, true));
}
