//! Trees with every edge case, from a directory and through GNU tar; and a real tree.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, chown, lchown, symlink},
        net::UnixListener,
    },
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::*;

pub fn patterned(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub fn build(root: &Path) {
    fs::create_dir_all(root.join("empty-dir")).unwrap();
    for size in [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145, (1 << 20) + 1] {
        fs::write(root.join(format!("file-{size}")), patterned(size)).unwrap();
    }
    fs::copy(root.join("file-1048577"), root.join("same")).unwrap();
    let mut near = patterned((1 << 20) + 1);
    near[300_000] ^= 1;
    fs::write(root.join("nearly-same"), near).unwrap();
    let mut holes = File::create(root.join("holes")).unwrap();
    for at in [3 << 20, 9 << 20] {
        holes.seek(SeekFrom::Start(at)).unwrap();
        holes.write_all(b"data").unwrap();
    }
    holes.set_len((12 << 20) + 77).unwrap();
    File::create(root.join("all-hole")).unwrap().set_len(5 << 20).unwrap();
    names(root);
    links_and_devices(root);
    attributes(root);
}

fn names(root: &Path) {
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..10_000 {
        fs::write(many.join(format!("entry-{i}")), if i % 100 == 0 { "x" } else { "" }).unwrap();
    }
    let odd = root.join("odd");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(OsStr::from_bytes(&[0xff; 255])), "long").unwrap();
    for i in 0..40u8 {
        fs::write(odd.join(OsStr::from_bytes(&[&[b'a' + i % 26; 254][..], &[b'0' + i]].concat())), "long")
            .unwrap();
    }
    for name in [
        &b"\xc3\x28"[..],
        b"new\nline",
        b" ",
        b"-",
        b"..a",
        b".a",
        b"+",
        b"...",
        b"\x01",
        b"caf\xc3\xa9",
        b"\\",
    ] {
        fs::write(odd.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let deep = (0..150).fold(root.join("deep"), |path, i| path.join(format!("level-{i:04}")));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "bottom").unwrap();
}

fn links_and_devices(root: &Path) {
    fs::write(root.join("linked"), "linked").unwrap();
    fs::hard_link(root.join("linked"), root.join("odd/also-linked")).unwrap();
    fs::hard_link(root.join("linked"), root.join("a-linked")).unwrap();
    symlink("linked", root.join("symlink")).unwrap();
    fs::hard_link(root.join("symlink"), root.join("symlink-linked")).unwrap();
    symlink("/nowhere/at/all", root.join("dangling")).unwrap();
    for length in [3900, 4032, 4033, 4095] {
        symlink(OsStr::from_bytes(&vec![b'x'; length]), root.join(format!("symlink-{length}"))).unwrap();
    }
    let node = |name: &str, kind, major, minor| {
        mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), makedev(major, minor)).unwrap();
    };
    node("null", FileType::CharacterDevice, 1, 3);
    node("whiteout", FileType::CharacterDevice, 0, 0);
    node("disk", FileType::BlockDevice, 259, 70_000);
    node("wide", FileType::CharacterDevice, 4095, (1 << 20) - 1);
    node("fifo", FileType::Fifo, 0, 0);
}

fn attributes(root: &Path) {
    chown(root.join("file-4095"), Some(4_000_000_000), Some(3_999_999_999)).unwrap();
    lchown(root.join("dangling"), Some(70_000), Some(80_000)).unwrap();
    fs::set_permissions(root.join("file-1"), Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(root.join("empty-dir"), Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(root.join("file-0"), Permissions::from_mode(0o000)).unwrap();
    let set = |name: &str, key: &str, value: &[u8]| xattr::set(root.join(name), key, value).unwrap();
    set("file-4097", "user.comment", b"with\0nul and \xff");
    set("file-4097", "user.empty", b"");
    set("file-4097", "trusted.secret", b"only root");
    set("empty-dir", "trusted.overlay.opaque", b"y");
    set("file-1", "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    set("many", "user.big", &vec![7; 3000]);
    set("symlink-4033", "trusted.long", &[9; 200]);
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
        16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    set("file-4096", "system.posix_acl_access", &acl);
    set("odd", "system.posix_acl_default", &acl);
}

#[test]
fn a_synthetic_directory_shows_the_same() {
    let dir = scratch();
    let source = dir.path().join("source");
    build(&source);
    let _socket = UnixListener::bind(source.join("socket")).unwrap();
    let imported = import_dir(&query(), &source, dir.path());
    assert_shows(&imported.layers[0], &source);
    let summary = &imported.layers[0].summary;
    assert!(summary.blob_bytes < summary.data_bytes / 4, "holes and copies take no room: {summary:?}");
    assert_eq!(fs::metadata(imported.layers[0].meta()).unwrap().len(), summary.meta_bytes);
}

#[test]
fn gnu_tars_of_a_synthetic_directory_show_the_same() {
    let dir = scratch();
    let source = dir.path().join("source");
    build(&source);
    for options in [
        &["--format=posix"][..],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
    ] {
        let out = scratch();
        let imported = import(&query(), &gnu_tar(&source, options), out.path()).unwrap();
        assert_shows(&imported.layers[0], &source);
    }
}

#[test]
fn an_old_gnu_tar_shows_the_same_but_for_what_it_cannot_hold() {
    let dir = scratch();
    let source = dir.path().join("source");
    build(&source);
    for options in [&["--format=gnu", "--no-xattrs"][..], &["--format=gnu", "--no-xattrs", "--sparse"]] {
        let out = scratch();
        let imported = import(&query(), &gnu_tar(&source, options), out.path()).unwrap();
        let mounted = kernel::mount(&imported.layers[0].meta(), imported.layers[0].blob().as_deref());
        let plain = |mut tree: snapshot::Snapshot| {
            for facts in tree.values_mut() {
                facts.xattrs.clear();
                facts.mtime.1 = 0;
            }
            tree
        };
        snapshot::assert_equal(&plain(snapshot::take(&source)), &plain(snapshot::take(&mounted.path())));
    }
}

#[test]
fn a_real_tree_shows_the_same() {
    let dir = scratch();
    let source = dir.path().join("source");
    let copy = |from: &str, to: &Path| {
        assert!(Command::new("cp").args(["-a", from]).arg(to).status().unwrap().success());
    };
    copy("/etc", &source);
    copy("/usr/share/perl5", &source.join("perl5"));
    copy("/usr/lib/python3", &source.join("python3"));
    assert_shows(&import_dir(&query(), &source, dir.path()).layers[0], &source);
    for compress in [&["--gzip"][..], &["--zstd"]] {
        if compress == ["--zstd"] && !has("zstd", "zstd") {
            continue;
        }
        let out = scratch();
        let bytes = gnu_tar(&source, &[compress, &["--format=posix"]].concat());
        assert_shows(&import(&query(), &bytes, out.path()).unwrap().layers[0], &source);
    }
}

#[test]
fn the_same_tree_makes_the_same_bytes() {
    let (dir, other) = (scratch(), scratch());
    let source = dir.path().join("source");
    build(&source);
    let first = import_dir(&query(), &source, dir.path());
    let second = import_dir(&query(), &source, other.path());
    assert_eq!(first.layers[0].summary, second.layers[0].summary);
    assert_eq!(fs::read(first.layers[0].meta()).unwrap(), fs::read(second.layers[0].meta()).unwrap());
    let mut bytes = fs::read(first.layers[0].meta()).unwrap();
    bytes.extend_from_slice(blake3::hash(&fs::read(first.layers[0].blob().unwrap()).unwrap()).as_bytes());
    assert_eq!(first.layers[0].summary.digest, format!("blake3:{}", blake3::hash(&bytes).to_hex()));
}

#[test]
fn a_directory_that_ends_on_a_block_shows_the_same() {
    // Every fill of the last block around its end, where a directory's layout changes.
    let dir = scratch();
    let source = dir.path().join("source");
    for last in 0..110 {
        let at = source.join(format!("d{last}"));
        fs::create_dir_all(&at).unwrap();
        for i in 0..16 {
            fs::write(at.join(format!("{i:0>230}")), "").unwrap();
        }
        fs::write(at.join("z".repeat(last + 1)), "").unwrap();
    }
    assert_shows(&import_dir(&query(), &source, dir.path()).layers[0], &source);
}

#[test]
fn a_root_of_any_size_shows_the_same() {
    // Around the fill where the root moves out of block 0, and where it needs blocks of its own.
    for names in [9, 10, 11, 14, 15, 16] {
        for last in [1, 40, 80, 120, 160, 200] {
            let dir = scratch();
            let source = dir.path().join("source");
            fs::create_dir(&source).unwrap();
            (0..names).for_each(|i| fs::write(source.join(format!("{i:0>250}")), "x").unwrap());
            fs::write(source.join("z".repeat(last)), "").unwrap();
            assert_shows(&import_dir(&query(), &source, dir.path()).layers[0], &source);
        }
    }
}
