//! A streaming EROFS writer: entries in, a metadata image and a data blob out, in one pass.
//!
//! The bytes of files go to the blob as they arrive, in 4 KiB blocks; a chunk that was seen before is stored once.
//! The tree is held in memory and laid out at [`Writer::finish`]: superblock and device table in block 0, then the
//! inodes (64-byte form) with their xattrs, chunk maps and short directories, then the blocks of long directories.
//! The image names the blob by its hash in the device table, so one digest covers both.
//!
//! Invariant: equal entries in equal order make equal bytes (no clock, no random uuid).

mod below;
mod blob;
mod emit;
mod layout;
pub mod read;
mod tree;

use std::{fs::File, io::Read, path::Path};

pub use below::Below;
pub use blob::CHUNK_BYTES;
pub use layout::BLOCK_BYTES;
pub use tree::{Attributes, Tree};

use crate::error::{Error, Result};
use blob::Blob;
use tree::Body;

/// What one import may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and all else, missing parents included.
    pub entries_max: u64,
    /// Memory for the tree: nodes, names, targets, xattrs. Without it an archive that packs well, full of xattrs,
    /// would take the node down.
    pub tree_bytes_max: u64,
    /// Decompressed bytes of the archive, and bytes of its files with holes counted: the guard against bombs.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries_max: 5_000_000, tree_bytes_max: 1 << 30, bytes_max: 256 << 30 }
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink(Vec<u8>),
    Char {
        major: u32,
        minor: u32,
    },
    Block {
        major: u32,
        minor: u32,
    },
    Fifo,
    Socket,
    /// Another name of an entry that came before.
    Hardlink(Vec<u8>),
}

/// One entry of the stream. Its data, for a file, is read by [`Writer::add`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Any bytes; a leading `/` is dropped, `..` is refused. Missing parents appear as `root:root 0755`.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// The lower twelve bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    /// Full names. Those of a namespace that EROFS cannot hold are dropped.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// `blake3:<hex>` over the bytes of the image, then the 32 bytes of the blob's blake3.
    pub digest: String,
    /// Inodes.
    pub files: u64,
    pub meta_bytes: u64,
    /// 0: there is no blob.
    pub blob_bytes: u64,
    /// Bytes of files before holes and duplicates were dropped.
    pub data_bytes: u64,
}

/// The writer. Dropped before `finish`, it leaves two half-written files for the owner of the directory to remove.
pub struct Writer {
    meta: File,
    blob: Blob,
    tree: Tree,
    bytes_left: u64,
    data_bytes: u64,
}

impl Writer {
    /// `meta` and `blob` must not exist.
    pub fn create(meta: &Path, blob: &Path, limits: &Limits) -> Result<Self> {
        let meta = File::options().read(true).write(true).create_new(true).open(meta);
        Ok(Self {
            meta: meta.map_err(Error::disk("create the image"))?,
            blob: Blob::create(blob)?,
            tree: Tree::new(limits),
            bytes_left: limits.bytes_max,
            data_bytes: 0,
        })
    }

    /// The tree so far, for what is not an entry: whiteouts, opaque directories, what lies below.
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Adds one entry, reading `data` to its end where it is a file. A path that is there already is replaced;
    /// a directory over a directory changes its attributes and keeps its children.
    pub fn add(&mut self, entry: Entry, data: &mut dyn Read) -> Result<()> {
        let attributes = Attributes::of(&entry)?;
        let body = match entry.kind {
            Kind::Directory => return self.tree.put_directory(&entry.path, attributes),
            Kind::Hardlink(target) => return self.tree.link(&entry.path, &target),
            Kind::File => {
                let (size, place) = self.blob.store(data, self.bytes_left)?;
                self.bytes_left -= size;
                self.data_bytes += size;
                Body::File { size, place }
            }
            Kind::Symlink(target) => Body::symlink(&entry.path, target)?,
            Kind::Char { major, minor } => Body::Device { char: true, rdev: layout::rdev(major, minor)? },
            Kind::Block { major, minor } => Body::Device { char: false, rdev: layout::rdev(major, minor)? },
            Kind::Fifo => Body::Fifo,
            Kind::Socket => Body::Socket,
        };
        self.tree.put(&entry.path, attributes, body)
    }

    /// Lays the tree out and writes the image. Both files are complete but not yet synced.
    pub fn finish(self) -> Result<(Summary, Tree)> {
        let blob = self.blob.finish()?;
        let (files, meta_bytes) = emit::emit(&self.tree, &blob, &self.meta)?;
        let mut hasher = blake3::Hasher::new();
        emit::hash(&self.meta, &mut hasher)?;
        hasher.update(blob.hash.as_bytes());
        let summary = Summary {
            digest: format!("blake3:{}", hasher.finalize().to_hex()),
            files,
            meta_bytes,
            blob_bytes: u64::from(blob.blocks) * BLOCK_BYTES as u64,
            data_bytes: self.data_bytes,
        };
        Ok((summary, self.tree))
    }
}
