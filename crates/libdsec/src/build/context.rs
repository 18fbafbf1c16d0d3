//! The directory that COPY and ADD take from: what a source names, and what it holds.
//!
//! Invariants: nothing outside the directory is read, whatever its symlinks say: a source that is one is followed within
//! the context alone, and those below a copied directory are copied as they are. Names in order, so that the same tree
//! has the same hash.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use api::{Code, Error, Result};

use super::ignore::{self, Ignore};
use crate::sandbox::tree::local;

/// Files and directories of one COPY.
const ENTRIES_MAX: usize = 1 << 18;
const DEPTH_MAX: usize = 256;
const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Context {
    /// Without symlinks in it.
    root: PathBuf,
    ignore: Ignore,
}

/// What a source is, and its tree.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The last part of its name.
    pub(crate) name: Vec<u8>,
    /// A directory: its content, not itself, is copied.
    pub(crate) is_directory: bool,
    /// Names are below the source; of a file the one entry has an empty one.
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) path: PathBuf,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Seconds.
    pub(crate) modified: u64,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Directory,
    File { size: u64, hash: blake3::Hash },
    Symlink(PathBuf),
}

impl Context {
    /// `ignore` is the text of its `.dockerignore`.
    pub(crate) fn open(root: &Path, ignore: &str) -> Result<Self> {
        let root = root.canonicalize().map_err(|e| local("reading", root, &e))?;
        if !root.is_dir() {
            return Err(Error::invalid(format!("the context {} is not a directory", root.display())));
        }
        Ok(Self { root, ignore: Ignore::parse(ignore)? })
    }

    /// What a word of a COPY names: one source, or each that a pattern matches, in order. Blocks.
    /// Errors: `not_found`; `invalid_argument` for what leads out of the context.
    pub(crate) fn find(&self, word: &str) -> Result<Vec<Source>> {
        if word.split('/').any(|part| part == "..") {
            return Err(Error::invalid(format!("`{word}` leads out of the context")));
        }
        let word = ignore::clean(word);
        let names =
            if word.contains(['*', '?', '[', '\\']) { self.matching(&word)? } else { vec![word.clone()] };
        if names.is_empty() {
            return Err(Error::not_found(format!("nothing in the context matches `{word}`")));
        }
        names.iter().map(|name| self.source(name)).collect()
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>> {
        let parts: Vec<_> = pattern.split('/').collect();
        let mut names = vec![String::new()];
        for part in parts {
            let matches = ignore::glob(part)?;
            let mut found = Vec::new();
            for above in &names {
                let directory = self.root.join(above);
                // A file has nothing below it.
                for entry in fs::read_dir(&directory).into_iter().flatten() {
                    let entry = entry.map_err(|e| local("reading", &directory, &e))?;
                    // A name that is no UTF-8 can be copied with its directory only.
                    let Ok(name) = entry.file_name().into_string() else { continue };
                    if matches.is_match(&name) {
                        found.push(if above.is_empty() { name } else { format!("{above}/{name}") });
                    }
                }
                if found.len() > ENTRIES_MAX {
                    return Err(too_many());
                }
            }
            names = found;
        }
        names.retain(|name| !self.ignore.hides(name));
        names.sort();
        Ok(names)
    }

    fn source(&self, name: &str) -> Result<Source> {
        let path = self.root.join(name);
        let missing =
            || Error::not_found(format!("`{name}` is not in the context, or .dockerignore hides it"));
        let real = path.canonicalize().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(),
            _ => local("reading", &path, &e),
        })?;
        let Ok(below) = real.strip_prefix(&self.root) else {
            return Err(Error::invalid(format!("`{name}` leads out of the context through a symlink")));
        };
        let hidden = |name: &str| !name.is_empty() && self.ignore.hides(name);
        let is_hidden = hidden(name) || below.to_str().is_some_and(hidden);
        let metadata = fs::symlink_metadata(&real).map_err(|e| local("reading", &real, &e))?;
        let last = Path::new(name).file_name().unwrap_or_default().as_bytes().to_vec();
        let mut entries = Vec::new();
        if metadata.is_dir() {
            self.walk(&real, below, Vec::new(), 0, &mut entries)?;
        } else if !is_hidden {
            entries.extend(entry(real, Vec::new(), &metadata)?);
        }
        // Below a hidden directory something may be there all the same.
        if is_hidden && entries.is_empty() {
            return Err(missing());
        }
        Ok(Source { name: last, is_directory: metadata.is_dir(), entries })
    }

    /// `below`: where `directory` is in the context; `name`: where below the source.
    fn walk(
        &self,
        directory: &Path,
        below: &Path,
        name: Vec<u8>,
        depth: usize,
        found: &mut Vec<Entry>,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!(
                "{} is over {DEPTH_MAX} directories deep",
                directory.display()
            )));
        }
        let at = |e: io::Error| local("reading", directory, &e);
        let listed = fs::read_dir(directory).map_err(at)?;
        let mut listed =
            listed.map(|one| Ok(one?.file_name())).collect::<io::Result<Vec<_>>>().map_err(at)?;
        listed.sort();
        for last in listed {
            let (path, below) = (directory.join(&last), below.join(&last));
            let name = [name.as_slice(), last.as_bytes()].join(if name.is_empty() { &b""[..] } else { b"/" });
            let metadata = fs::symlink_metadata(&path).map_err(|e| local("reading", &path, &e))?;
            let hidden = self.ignore.hides(&below.to_string_lossy());
            if hidden && !(metadata.is_dir() && self.ignore.keeps_any()) {
                continue;
            }
            if !hidden {
                found.extend(entry(path.clone(), name.clone(), &metadata)?);
            }
            if found.len() > ENTRIES_MAX {
                return Err(too_many());
            }
            if metadata.is_dir() {
                self.walk(&path, &below, name, depth + 1, found)?;
            }
        }
        Ok(())
    }
}

fn too_many() -> Error {
    Error::invalid(format!("over {ENTRIES_MAX} files: name fewer, or hide some by .dockerignore"))
}

/// None for a socket, which means nothing to another machine.
fn entry(path: PathBuf, name: Vec<u8>, metadata: &fs::Metadata) -> Result<Option<Entry>> {
    let kind = metadata.file_type();
    let at = |e: io::Error| local("reading", &path, &e);
    let what = if kind.is_dir() {
        What::Directory
    } else if kind.is_symlink() {
        What::Symlink(fs::read_link(&path).map_err(at)?)
    } else if kind.is_file() {
        let (size, hash) = hash(&path).map_err(at)?;
        What::File { size, hash }
    } else if kind.is_socket() {
        return Ok(None);
    } else {
        let message = format!("{} is a device or a pipe: hide it by .dockerignore", path.display());
        return Err(Error::new(Code::InvalidArgument, message));
    };
    let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
    Ok(Some(Entry { name, path, mode: metadata.mode() & 0o7777, modified, what }))
}

fn hash(path: &Path) -> io::Result<(u64, blake3::Hash)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut size, mut buffer) = (blake3::Hasher::new(), 0, vec![0; READ_BYTES]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((size, hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
        size += read as u64;
    }
}

impl Source {
    /// All of it that a layer would show, but times and owners: those are the copy's.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(&self.name);
        field(&[u8::from(self.is_directory)]);
        for entry in &self.entries {
            field(&entry.name);
            field(&entry.mode.to_le_bytes());
            match &entry.what {
                What::Directory => field(b"d"),
                What::File { hash, .. } => field(&[b"f", &hash.as_bytes()[..]].concat()),
                What::Symlink(target) => field(&[b"l", target.as_os_str().as_bytes()].concat()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
