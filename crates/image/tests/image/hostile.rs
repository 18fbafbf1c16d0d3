//! Archives that mean harm, or were cut short: a named error, nothing left.

use std::io::Write;

use api::Code;
use image::{Catalogue, Limits};
use tar::EntryType;

use crate::{archive::Tar, *};

/// The error, after the check that the catalogue is as empty as before.
fn refused_with(limits: Limits, bytes: &[u8]) -> api::Error {
    let dir = scratch();
    let catalogue = Catalogue::open_with(dir.path(), limits).unwrap();
    let error = catalogue.import_reader(&query(), bytes).expect_err("it was accepted");
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(!error.message.contains("/var/tmp"), "no private path: {error}");
    for part in ["layers", "images", "tmp"] {
        let left: Vec<_> = std::fs::read_dir(dir.path().join(part)).unwrap().collect();
        assert!(left.is_empty(), "{part}: {left:?}");
    }
    error
}

fn refused(bytes: &[u8]) -> String {
    refused_with(Limits::default(), bytes).message
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

#[test]
fn ways_out_of_the_tree() {
    for name in ["../x", "a/../../x", "a/..", "..", "/../x"] {
        assert!(refused(&Tar::new().file(name, "x").bytes()).contains(".."), "{name}");
    }
    assert!(refused(&Tar::new().file("a", "x").hardlink("b", "../a").bytes()).contains(".."));
    assert!(refused(&Tar::new().hardlink("b", "/etc/passwd").bytes()).contains("hard link"));
    assert!(refused(&Tar::new().hardlink("b", "a").file("a", "later").bytes()).contains("hard link"));
    assert!(refused(&Tar::new().dir("a").hardlink("b", "a").bytes()).contains("directory"));
    assert!(
        refused(&Tar::new().symlink("etc", "/etc").file("etc/passwd", "x").bytes())
            .contains("not a directory")
    );
    assert!(refused(&Tar::new().file("f", "").file("f/x", "x").bytes()).contains("not a directory"));
    assert!(refused(&Tar::new().file("./", "").symlink(".", "/etc").bytes()).contains("root"));
}

#[test]
fn impossible_names() {
    let long = "n".repeat(256);
    assert!(refused(&Tar::new().pax(&[("path", long.as_bytes())]).file("x", "").bytes()).contains("255"));
    assert!(refused(&Tar::new().pax(&[("path", b"a\0b")]).file("x", "").bytes()).contains("NUL"));
    let deep = "d/".repeat(3000);
    assert!(refused(&Tar::new().pax(&[("path", deep.as_bytes())]).file("x", "").bytes()).contains("4095"));
    assert!(refused(&Tar::new().symlink("x", "").bytes()).contains("symlink"));
    assert!(refused(&Tar::new().pax(&[("uid", b"4294967296")]).file("x", "").bytes()).contains("32 bits"));
    assert!(
        refused(&Tar::new().pax(&[("SCHILY.xattr.user.x", &[0; 65_536])]).file("x", "").bytes())
            .contains("too large")
    );
    assert!(refused(&Tar::new().entry(EntryType::new(b'M'), "x", "", b"").bytes()).contains("not supported"));
}

#[test]
fn too_much() {
    let few = Limits { entries_max: 10, ..Limits::default() };
    let tar = (0..11).fold(Tar::new(), |tar, i| tar.file(&format!("f{i}"), ""));
    assert!(refused_with(few, &tar.bytes()).message.contains("10 entries"));
    assert!(
        refused_with(few, &Tar::new().file("a/b/c/d/e/f/g/h/i/j/k/l", "").bytes())
            .message
            .contains("10 entries")
    );
    let lean = Limits { tree_bytes_max: 1 << 20, ..Limits::default() };
    let fat = (0..20).fold(Tar::new(), |tar, i| {
        tar.pax(&[("SCHILY.xattr.user.x", &[7; 60_000])]).file(&format!("f{i}"), "")
    });
    assert!(refused_with(lean, &gzip(&fat.bytes())).message.contains("memory"));
    let same = (0..20).fold(Tar::new(), |tar, _| tar.pax(&[("SCHILY.xattr.user.x", &[7; 60_000])]).dir("d"));
    assert!(refused_with(lean, &gzip(&same.bytes())).message.contains("memory"));
    let whiteouts = (0..8000).fold(Tar::new(), |tar, i| tar.file(&format!(".wh.{i}"), ""));
    let image = oci::Layout::new(vec![Tar::new().file("f", "").bytes(), whiteouts.bytes()]);
    assert!(refused_with(lean, &image.bytes()).message.contains("memory"));
    let small = Limits { bytes_max: 1 << 20, ..Limits::default() };
    let bomb = gzip(&Tar::new().entry(EntryType::Regular, "zeros", "", &vec![0; 16 << 20]).bytes());
    assert!(bomb.len() < 1 << 20);
    assert!(refused_with(small, &bomb).message.contains("larger than this node accepts"));
    let bomb = zstd::encode_all(&vec![0; 16 << 20][..], 1).unwrap();
    refused_with(small, &bomb);
    // A hole costs an archive nothing.
    let sparse = [
        ("GNU.sparse.major", &b"0"[..]),
        ("GNU.sparse.size", b"9000000000000000000"),
        ("GNU.sparse.map", b"0,0"),
    ];
    refused_with(small, &Tar::new().pax(&sparse).file("hole", "").bytes());
}

#[test]
fn lengths_that_lie() {
    let mut tar = Tar::new().file("x", "data").bytes();
    tar[124..136].copy_from_slice(b"77777777777\0");
    refused(&resummed(tar));
    // A long name of eight gibibytes must not be read into memory.
    let mut tar =
        Tar::new().entry(EntryType::GNULongName, "././@LongLink", "", b"name\0").file("x", "").bytes();
    tar[124..136].copy_from_slice(b"77777777777\0");
    assert!(refused(&resummed(tar)).contains("more than"));
    for records in [
        vec![("size", &b"99999999999999999999"[..])],
        vec![("size", b"18446744073709551615")],
        vec![("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"100")],
        vec![("GNU.sparse.size", b"100"), ("GNU.sparse.map", b"0,4,2,4")],
        vec![("GNU.sparse.size", b"100"), ("GNU.sparse.map", b"0,99")],
        vec![("GNU.sparse.size", b"2"), ("GNU.sparse.map", b"0,4")],
    ] {
        refused(&Tar::new().pax(&records).file("x", "data").bytes());
    }
    let endless = (0..100).fold(Tar::new(), |tar, _| tar.pax(&[("comment", b"x")]));
    assert!(refused(&endless.file("x", "").bytes()).contains("without end"));
}

/// With the first header's checksum made right again.
fn resummed(mut tar: Vec<u8>) -> Vec<u8> {
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar
}

#[test]
fn cut_short_anywhere() {
    let tar = Tar::new()
        .file("a", "some data")
        .dir("d")
        .pax(&[("path", b"long")])
        .file("b", &"x".repeat(3000))
        .bytes();
    let end = tar.len() - 1024;
    for length in (0..=end).step_by(64).chain([1, 511, 513, end - 1]) {
        assert!(refused(&tar[..length]).contains("truncated") || length < 512, "{length}");
    }
    for packed in [gzip(&tar), zstd::encode_all(&tar[..], 3).unwrap()] {
        for length in 5..packed.len() {
            refused(&packed[..length]);
        }
        let mut flipped = packed.clone();
        let last = flipped.len() - 5;
        flipped[last] ^= 0x55;
        if flipped.starts_with(&[0x1f]) {
            refused(&flipped);
        }
    }
}

#[test]
fn not_an_archive() {
    refused(b"hello, this is not a tar at all");
    refused(&[0xff; 4096]);
    refused(&[0x1f, 0x8b, 0, 0]);
    let mut tar = Tar::new().file("x", "").bytes();
    tar[0] ^= 1;
    assert!(refused(&tar).contains("damaged"));
}
