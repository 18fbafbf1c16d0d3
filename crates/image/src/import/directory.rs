//! Walks a directory of the node in the order of names.
//!
//! Invariants: symlinks are read and never followed; a name that changes under the walk ends the import; sockets
//! are kept as inodes.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use super::Options;
use crate::{
    erofs::{Entry, Kind, Writer},
    error::{Error, Result, show},
};

/// What is to become of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// As if it were not there; nor is anything below it.
    LeaveOut,
    /// It hides what a lower layer has there, and is not looked into.
    Whiteout,
}

/// Decides on each path but the top, parents first. `path` is relative to the source.
pub type Judge<'a> = dyn FnMut(&[u8], &Metadata) -> Result<Verdict> + 'a;

/// Everything.
pub fn all(_: &[u8], _: &Metadata) -> Result<Verdict> {
    Ok(Verdict::Keep)
}

pub(super) fn walk(source: &Path, options: &Options, writer: &mut Writer, judge: &mut Judge) -> Result<()> {
    let metadata = fs::metadata(source).map_err(|e| unreadable(b"", &e))?;
    if !metadata.is_dir() {
        return Err(Error::refused("what is to be imported is not a directory"));
    }
    let mut walk = Walk { options, writer, linked: HashMap::new() };
    walk.one(source.to_owned(), Vec::new(), &metadata)?;
    let mut stack = vec![(source.to_owned(), Vec::new())];
    while let Some((dir, path)) = stack.pop() {
        let mut directories = Vec::new();
        for name in names(&dir).map_err(|e| unreadable(&path, &e))? {
            let (full, path) = (dir.join(&name), join(&path, name.as_bytes()));
            let metadata = fs::symlink_metadata(&full).map_err(|e| unreadable(&path, &e))?;
            match judge(&path, &metadata)? {
                Verdict::Keep => {}
                Verdict::LeaveOut => continue,
                Verdict::Whiteout => {
                    walk.writer.tree().whiteout(&options.place(&path))?;
                    continue;
                }
            }
            if metadata.is_dir() {
                directories.push((full.clone(), path.clone()));
            }
            walk.one(full, path, &metadata)?;
        }
        stack.extend(directories.into_iter().rev());
    }
    Ok(())
}

fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let mut names: Vec<_> =
        fs::read_dir(dir).and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect())?;
    names.sort_unstable();
    Ok(names)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}

/// `path` is relative to the source: where that is on this node is nobody's business.
fn unreadable(path: &[u8], error: &io::Error) -> Error {
    Error::refused(format!("/{}: {error}", show(path).trim_matches('`')))
}

struct Walk<'a> {
    options: &'a Options,
    writer: &'a mut Writer,
    /// The first name of what has several: (device, inode).
    linked: HashMap<(u64, u64), Vec<u8>>,
}

impl Walk<'_> {
    fn one(&mut self, full: PathBuf, path: Vec<u8>, metadata: &Metadata) -> Result<()> {
        let placed = self.options.place(&path);
        let unreadable = |e: &io::Error| unreadable(&path, e);
        let mut kind = kind_of(&full, metadata).map_err(|e| unreadable(&e))?;
        if metadata.nlink() > 1 && kind != Kind::Directory {
            let id = (metadata.dev(), metadata.ino());
            match self.linked.get(&id) {
                Some(first) => kind = Kind::Hardlink(first.clone()),
                None => drop(self.linked.insert(id, placed.clone())),
            }
        }
        let mut data: Box<dyn Read> = match kind {
            Kind::File => Box::new(open(&full).map_err(|e| unreadable(&e))?),
            _ => Box::new(io::empty()),
        };
        let (uid, gid) = self.options.owned(metadata.uid(), metadata.gid());
        let entry = Entry {
            path: placed,
            kind,
            mode: metadata.mode() & 0o7777,
            uid,
            gid,
            mtime_s: metadata.mtime(),
            mtime_ns: metadata.mtime_nsec() as u32,
            xattrs: xattrs(&full).map_err(|e| unreadable(&e))?,
        };
        self.writer.add(entry, &mut data).map_err(|error| match error {
            Error::Source(cause) => unreadable(&cause),
            other => other,
        })
    }
}

fn kind_of(full: &Path, metadata: &Metadata) -> io::Result<Kind> {
    let kind = metadata.file_type();
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    Ok(if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        let target = fs::read_link(full)?;
        Kind::Symlink(target.into_os_string().into_vec())
    } else if kind.is_char_device() {
        Kind::Char { major, minor }
    } else if kind.is_block_device() {
        Kind::Block { major, minor }
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else {
        Kind::File
    })
}

/// Not through a symlink, and not waiting for a fifo's other end, should the name have changed since it was seen.
fn open(full: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    File::options().read(true).custom_flags(flags.bits() as i32).open(full)
}

fn xattrs(full: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = match xattr::list(full) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(Vec::new()),
        names => names?,
    };
    let mut xattrs = Vec::new();
    for name in names {
        if let Some(value) = xattr::get(full, &name)? {
            xattrs.push((name.into_vec(), value));
        }
    }
    Ok(xattrs)
}
