//! All that stat, read and the xattr calls tell of a tree, to compare two.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, i64),
    pub rdev: u64,
    pub links: u64,
    /// The first of its names.
    pub first: PathBuf,
    pub content: Option<blake3::Hash>,
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
}

pub type Snapshot = BTreeMap<PathBuf, Facts>;

pub fn take(root: &Path) -> Snapshot {
    let mut names = vec![PathBuf::new()];
    let mut stack = vec![PathBuf::new()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            let kind = match fs::symlink_metadata(root.join(&path)) {
                // overlayfs lists a whiteout in a directory of a single layer, and does not find it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                found => found.unwrap().file_type(),
            };
            assert_eq!(entry.file_type().unwrap(), kind, "the dirent's type of {path:?}");
            if kind.is_dir() {
                stack.push(path.clone());
            }
            names.push(path);
        }
    }
    names.sort();
    let mut firsts = HashMap::new();
    names.into_iter().map(|name| (name.clone(), facts(root, name, &mut firsts))).collect()
}

fn facts(root: &Path, name: PathBuf, firsts: &mut HashMap<(u64, u64), PathBuf>) -> Facts {
    let full = if name.as_os_str().is_empty() { root.to_owned() } else { root.join(&name) };
    let m = fs::symlink_metadata(&full).unwrap();
    let kind = m.file_type();
    let is_device = kind.is_char_device() || kind.is_block_device();
    let names = match xattr::list(&full) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Vec::new(),
        names => names.unwrap().collect(),
    };
    let value = |name: OsString| (name.clone(), xattr::get(&full, &name).unwrap().unwrap());
    Facts {
        mode: m.mode(),
        owner: (m.uid(), m.gid()),
        // A directory's size is the file system's own affair.
        size: if kind.is_dir() { 0 } else { m.size() },
        mtime: (m.mtime(), m.mtime_nsec()),
        rdev: if is_device { m.rdev() } else { 0 },
        links: m.nlink(),
        first: if kind.is_dir() { name } else { firsts.entry((m.dev(), m.ino())).or_insert(name).clone() },
        content: kind.is_file().then(|| {
            let mut hasher = blake3::Hasher::new();
            io::copy(&mut File::open(&full).unwrap(), &mut hasher).unwrap();
            hasher.finalize()
        }),
        target: kind.is_symlink().then(|| fs::read_link(&full).unwrap()),
        xattrs: names.into_iter().map(value).collect(),
    }
}

/// Says which name differs, not both trees in full.
pub fn assert_equal(expected: &Snapshot, found: &Snapshot) {
    for (name, facts) in expected {
        let shown = show(name);
        let other = found.get(name).unwrap_or_else(|| panic!("{shown} is missing"));
        assert_eq!(facts, other, "{shown}");
    }
    let more: Vec<_> =
        found.keys().filter(|name| !expected.contains_key(*name)).map(|name| show(name)).collect();
    assert!(more.is_empty(), "not in the source: {more:?}");
}

fn show(name: &Path) -> String {
    let text = OsStr::as_bytes(name.as_os_str()).escape_ascii().to_string();
    text.chars().take(200).collect()
}
