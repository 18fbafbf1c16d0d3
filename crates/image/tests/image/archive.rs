//! Archives made by hand: options of the query, order, duplicates, large attributes.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use api::image::ImportFormat;
use tar::{Builder, EntryType, Header};

use crate::*;

pub struct Tar(Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }
    /// The name goes in as it is, unchecked.
    pub fn entry(mut self, kind: EntryType, name: &str, link: &str, data: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o640);
        header.set_uid(11);
        header.set_gid(12);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }
    pub fn file(self, name: &str, data: &str) -> Self {
        self.entry(EntryType::Regular, name, "", data.as_bytes())
    }
    pub fn dir(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"")
    }
    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"")
    }
    pub fn hardlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"")
    }
    pub fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).unwrap();
        self
    }
    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub fn mounted(bytes: &[u8], query: &ImportQuery) -> (tempfile::TempDir, kernel::Mounted) {
    let dir = scratch();
    let imported = import(query, bytes, dir.path()).unwrap();
    fsck(&imported.layers[0]);
    let mounted = kernel::mount(&imported.layers[0].meta(), imported.layers[0].blob().as_deref());
    (dir, mounted)
}

fn owner(path: &Path) -> (u32, u32) {
    let m = fs::symlink_metadata(path).unwrap();
    (m.uid(), m.gid())
}

#[test]
fn the_last_of_equal_names_wins() {
    let tar = Tar::new()
        .file("a", "first")
        .file("./a", "second")
        .dir("d")
        .file("d/inside", "stays")
        .dir("d/")
        .dir("was-dir")
        .file("was-dir/x", "goes")
        .file("was-dir", "file now")
        .file("was-file", "goes")
        .dir("was-file")
        .file("was-file/x", "here");
    let (_dir, mounted) = mounted(&tar.bytes(), &query());
    let at = mounted.path();
    assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "second");
    assert_eq!(fs::read_to_string(at.join("d/inside")).unwrap(), "stays");
    assert_eq!(fs::read_to_string(at.join("was-dir")).unwrap(), "file now");
    assert_eq!(fs::read_to_string(at.join("was-file/x")).unwrap(), "here");
    assert_eq!(fs::metadata(&at).unwrap().nlink(), 2 + 2, "d and was-file");
}

#[test]
fn hard_links_follow_replacements() {
    let tar = Tar::new()
        .file("a", "one")
        .hardlink("b", "./a")
        .file("a", "two")
        .hardlink("c", "b")
        .hardlink("b", "b");
    let (_dir, mounted) = mounted(&tar.bytes(), &query());
    let at = mounted.path();
    assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "two");
    assert_eq!(fs::read_to_string(at.join("c")).unwrap(), "one");
    assert_eq!(fs::metadata(at.join("a")).unwrap().nlink(), 1);
    assert_eq!(fs::metadata(at.join("b")).unwrap().nlink(), 2);
}

#[test]
fn a_prefix_and_an_owner_hold_for_the_whole_tree() {
    let mut query = query();
    query.prefix = Some("/home/user//project/".into());
    query.owner = Some("1000:1001".into());
    let tar = Tar::new().file("/absolute", "x").file("missing/parent/f", "y").hardlink("h", "/absolute");
    let (_dir, mounted) = mounted(&tar.bytes(), &query);
    let at = mounted.path();
    let project = at.join("home/user/project");
    assert_eq!(fs::read_to_string(project.join("absolute")).unwrap(), "x");
    assert_eq!(fs::metadata(project.join("h")).unwrap().nlink(), 2);
    for name in ["", "absolute", "missing", "missing/parent", "missing/parent/f"] {
        assert_eq!(owner(&project.join(name)), (1000, 1001), "{name}");
    }
    assert_eq!(owner(&at.join("home/user")), (1000, 1001), "a home belongs to its user");
    assert_eq!(owner(&at.join("home")), (0, 0));
}

#[test]
fn a_prefix_below_tmp_leaves_tmp_open() {
    let mut query = query();
    query.prefix = Some("/tmp/work".into());
    query.owner = Some("5:6".into());
    let (_dir, mounted) = mounted(&Tar::new().file("f", "x").bytes(), &query);
    assert_eq!(fs::metadata(mounted.path().join("tmp")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(owner(&mounted.path().join("tmp")), (0, 0));
}

#[test]
fn the_config_of_a_plain_tar_comes_from_the_query() {
    let dir = scratch();
    let mut query = query();
    query.user = Some("app".into());
    query.workdir = Some("/srv".into());
    query.env = Some("A=1\nB=x=y\n".into());
    let config = import(&query, &Tar::new().file("f", "").bytes(), dir.path()).unwrap().config;
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app"), Some("/srv")));
    assert_eq!(
        config.env.into_iter().collect::<Vec<_>>(),
        [("A".into(), "1".into()), ("B".into(), "x=y".into())]
    );
    query.env = Some("no equals".into());
    assert!(import(&query, &Tar::new().bytes(), scratch().path()).is_err());
}

#[test]
fn large_attributes_cross_blocks() {
    let (big, bigger) = (vec![3; 60_000], vec![5; 65_535]);
    let records = [
        ("SCHILY.xattr.user.big", &big[..]),
        ("SCHILY.xattr.user.bigger", &bigger[..]),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.metacopy", b""),
        ("SCHILY.xattr.com.apple.quarantine", b"x"),
    ];
    let tar = Tar::new().pax(&records).file("f", "content").pax(&records).dir("d").file("d/g", "content");
    let (_dir, mounted) = mounted(&tar.bytes(), &query());
    for name in ["f", "d"] {
        let path = mounted.path().join(name);
        assert_eq!(xattr::get(&path, "user.big").unwrap().unwrap(), big);
        assert_eq!(xattr::get(&path, "user.bigger").unwrap().unwrap(), bigger);
        assert_eq!(xattr::list(&path).unwrap().count(), 2, "overlayfs's own and unknown ones are dropped");
    }
    assert_eq!(fs::read_to_string(mounted.path().join("d/g")).unwrap(), "content");
}

#[test]
fn a_plain_tar_that_begins_like_an_image_is_a_plain_tar() {
    let tar = Tar::new().dir("./").file("manifest.json", r#"{"name": "an extension"}"#).file("x", "y");
    let (_dir, mounted) = mounted(&tar.bytes(), &query());
    assert_eq!(fs::read_to_string(mounted.path().join("x")).unwrap(), "y");
    let mut query = query();
    query.format = ImportFormat::OciArchive;
    let tar = Tar::new().file("manifest.json", "{}").bytes();
    let refused = import(&query, &tar, scratch().path()).unwrap_err();
    assert!(refused.to_string().contains("no image"), "{refused}");
}

#[test]
fn headers_for_the_whole_archive_are_passed_over() {
    let tar = Tar::new().entry(
        EntryType::XGlobalHeader,
        "pax_global_header",
        "",
        b"52 comment=0123456789012345678901234567890123456789\n",
    );
    let (_dir, mounted) = mounted(&tar.file("f", "x").bytes(), &query());
    assert_eq!(fs::read_to_string(mounted.path().join("f")).unwrap(), "x");
}

#[test]
fn the_cost_of_an_import_is_measured() {
    let dir = scratch();
    let archive = dir.path().join("a.tar");
    fs::write(&archive, Tar::new().file("f", "x").bytes()).unwrap();
    let cost = image::bench::import_cost(&archive, dir.path()).unwrap();
    assert_eq!((cost.archive_bytes, cost.files), (2048, 2));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the archive is left");
}

/// An endless file of one repeated, non-zero chunk, cut at `left`.
struct Repeated {
    left: u64,
}

impl std::io::Read for Repeated {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(64 << 10).min(usize::try_from(self.left).unwrap());
        out[..n].fill(7);
        self.left -= n as u64;
        Ok(n)
    }
}

#[test]
fn memory_does_not_grow_with_the_bytes_of_files() {
    const ROLE: &str = "DSEC_IMAGE_TEST_MEMORY";
    const SIZE: u64 = 1 << 30;
    if std::env::var_os(ROLE).is_none() {
        // Alone in a process, for the high-water mark is the process's.
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "archive::memory_does_not_grow_with_the_bytes_of_files", "--nocapture"])
            .env(ROLE, "1")
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        return;
    }
    let mut header = Header::new_gnu();
    header.set_path("big").unwrap();
    header.set_size(SIZE);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let stream = std::io::Read::chain(&header.as_bytes()[..], Repeated { left: SIZE });
    let stream = std::io::Read::chain(stream, &[0; 1024][..]);
    let dir = scratch();
    let imported =
        image::import::import_archive(&query(), &image::Limits::default(), stream, dir.path()).unwrap();
    assert_eq!(imported.layers[0].summary.data_bytes, SIZE);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let high = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let high: u64 = high.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(high < 64 << 10, "{high} kB");
}
