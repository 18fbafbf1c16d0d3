//! Reads the layers that the writer makes, for merges and exports; sandboxes read them through the kernel.
//!
//! ```text
//! Reader --node(nid)--> Node --names--> nids of its children
//!                            \--data--> bytes, out of the blob
//! ```
//! Only what [`super::Writer`] writes is understood: 64-byte inodes, xattrs after the inode, one data device.
//!
//! Invariants: a layer may be damaged, so each place is checked against the size of its file before it is read, no
//! memory is taken by a number that was read, and what is wrong is [`Error::Damaged`]. What refers to each other
//! without end (a directory inside itself) is for the walk to notice: a node alone cannot tell.

mod data;
mod directory;
mod meta;
mod node;

use std::{fs::File, path::Path};

pub use data::{Data, Extent};
pub use directory::Name;
pub use node::{Node, OPAQUE};

use super::layout::{
    BLOCK_BYTES, CHUNK_INDEXES, DEVICE_SLOT_BYTES, DEVICE_TABLE_OFFSET, INCOMPAT_CHUNKED_FILE,
    INCOMPAT_DEVICE_TABLE, MAGIC, SUPER_OFFSET, crc32c,
};
use crate::error::{Error, Result};
use meta::Meta;

/// A layer, opened. It stays readable when its files lose their names.
pub struct Reader {
    meta: Meta,
    blob: Option<File>,
    blob_blocks: u32,
    root: u64,
}

impl Reader {
    /// Opens both files and checks the superblock. `blob`: None where no file has any bytes.
    pub fn open(meta: &Path, blob: Option<&Path>) -> Result<Self> {
        let meta = Meta::open(meta)?;
        let block = meta.take(0, BLOCK_BYTES)?;
        let (root, device_blocks) = superblock(&block)?;
        let blob = match (blob, device_blocks) {
            (Some(blob), Some(_)) => Some(File::open(blob).map_err(Error::disk("open a layer's blob"))?),
            (None, None) => None,
            (Some(_), None) => return Err(Error::Damaged("a blob that its superblock does not tell of")),
            (None, Some(_)) => return Err(Error::Damaged("its blob is missing")),
        };
        let blob_blocks = device_blocks.unwrap_or_default();
        if let Some(blob) = &blob {
            let bytes = blob.metadata().map_err(Error::disk("open a layer's blob"))?.len();
            if bytes != u64::from(blob_blocks) * BLOCK_BYTES as u64 {
                return Err(Error::Damaged("its blob has another size than its superblock tells"));
            }
        }
        Ok(Self { meta, blob, blob_blocks, root })
    }

    /// The root directory.
    pub fn root(&self) -> Result<Node> {
        let root = self.node(self.root)?;
        if !root.is_directory() {
            return Err(Error::Damaged("its root is not a directory"));
        }
        Ok(root)
    }

    /// Bytes of the image and of the blob.
    pub fn size_bytes(&self) -> u64 {
        self.meta.bytes() + u64::from(self.blob_blocks) * BLOCK_BYTES as u64
    }
}

/// The root's number, and the blocks of the data device.
fn superblock(block: &[u8]) -> Result<(u64, Option<u32>)> {
    let at = SUPER_OFFSET;
    if u32_at(block, at) != MAGIC {
        return Err(Error::Damaged("no EROFS superblock"));
    }
    let mut summed = block[at..].to_vec();
    summed[4..8].fill(0);
    if crc32c(&summed) != u32_at(block, at + 4) {
        return Err(Error::Damaged("the checksum of its superblock does not match"));
    }
    if usize::from(block[at + 12]) != BLOCK_BYTES.trailing_zeros() as usize {
        return Err(Error::Damaged("blocks of another size"));
    }
    let root = u64::from(u16_at(block, at + 14));
    let devices = u16_at(block, at + 86);
    let slot = usize::from(u16_at(block, at + 88));
    match (u32_at(block, at + 80), devices) {
        (INCOMPAT_CHUNKED_FILE, 0) => Ok((root, None)),
        (features, 1)
            if features == INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE
                && slot * DEVICE_SLOT_BYTES == DEVICE_TABLE_OFFSET =>
        {
            Ok((root, Some(u32_at(block, DEVICE_TABLE_OFFSET + 64))))
        }
        _ => Err(Error::Damaged("features that the writer does not use")),
    }
}

/// The chunk's length in bytes. `format`: what the inode says.
fn chunk_bytes(format: u32) -> Result<u64> {
    let bits = format & 0x1f;
    if format != bits | CHUNK_INDEXES {
        return Err(Error::Damaged("a chunk format that the writer does not use"));
    }
    Ok((BLOCK_BYTES as u64) << bits)
}

/// Fields of a slice whose length was checked where it was taken.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
