//! The bytes of EROFS: constants and encoders, after the kernel's description of the format (`erofs_fs.h`).
//!
//! Invariants: little endian throughout; inodes start on 32-byte slots; a node id is its offset over 32.

use crate::error::{Error, Result};

pub const BLOCK_BYTES: usize = 4096;
pub const SUPER_OFFSET: usize = 1024;
/// The device table follows the superblock; slots are numbered by their size.
pub const DEVICE_SLOT_BYTES: usize = 128;
pub const DEVICE_TABLE_OFFSET: usize = 1152;
/// Where inodes begin: after superblock and table. The root comes first, for `root_nid` has 16 bits.
pub const INODES_OFFSET: u64 = 1280;
pub const SLOT_BYTES: u64 = 32;
pub const INODE_BYTES: usize = 64;
pub const DIRENT_BYTES: usize = 12;
pub const NAME_BYTES_MAX: usize = 255;
/// A block address that means "zeros".
pub const HOLE: u32 = u32::MAX;

pub const MAGIC: u32 = 0xE0F5_E1E2;
const COMPAT_CHECKSUM: u32 = 0x1;
const COMPAT_MTIME: u32 = 0x2;
pub const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
pub const INCOMPAT_DEVICE_TABLE: u32 = 0x8;
pub const CHUNK_INDEXES: u32 = 0x20;
/// The field of the chunk's size has five bits.
const CHUNK_BITS_MAX: u32 = 31;

/// Where an inode's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Blocks of the image.
    Plain = 0,
    /// Blocks of the image, the rest right after the inode.
    Inline = 2,
    /// Chunks, by an index after the inode.
    Chunked = 4,
}

/// An inode's fixed part.
pub struct Inode {
    pub data: Data,
    pub xattr_bytes: usize,
    /// With the type bits.
    pub mode: u16,
    pub size: u64,
    /// First block, device number, or chunk format, by what the inode is.
    pub union: u32,
    pub ino: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub links: u32,
}

impl Inode {
    pub fn encode(&self) -> [u8; INODE_BYTES] {
        let format: u16 = 1 | ((self.data as u16) << 1);
        // The 12-byte header counts as one, each further 4 bytes as one more; `Xattrs` bounds it to 16 bits.
        let xattr_count = if self.xattr_bytes == 0 { 0 } else { (self.xattr_bytes - 12) / 4 + 1 };
        let mut out = [0; INODE_BYTES];
        out[0..2].copy_from_slice(&format.to_le_bytes());
        out[2..4].copy_from_slice(&(xattr_count as u16).to_le_bytes());
        out[4..6].copy_from_slice(&self.mode.to_le_bytes());
        out[8..16].copy_from_slice(&self.size.to_le_bytes());
        out[16..20].copy_from_slice(&self.union.to_le_bytes());
        out[20..24].copy_from_slice(&self.ino.to_le_bytes());
        out[24..28].copy_from_slice(&self.uid.to_le_bytes());
        out[28..32].copy_from_slice(&self.gid.to_le_bytes());
        out[32..40].copy_from_slice(&self.mtime_s.to_le_bytes());
        out[40..44].copy_from_slice(&self.mtime_ns.to_le_bytes());
        out[44..48].copy_from_slice(&self.links.to_le_bytes());
        out
    }
}

/// The chunk format of a file whose chunks are `bytes` long or, for a single chunk, at least that.
pub fn chunk_format(bytes: u64) -> Result<u32> {
    let blocks = bytes.div_ceil(BLOCK_BYTES as u64).max(1);
    let bits = blocks.next_power_of_two().trailing_zeros();
    if bits > CHUNK_BITS_MAX {
        return Err(Error::refused("a file is larger than 8 TiB"));
    }
    Ok(bits | CHUNK_INDEXES)
}

/// One entry of a chunk map: device 1 is the blob.
pub fn chunk_index(block: u32) -> [u8; 8] {
    let device: u16 = if block == HOLE { 0 } else { 1 };
    let mut out = [0; 8];
    out[2..4].copy_from_slice(&device.to_le_bytes());
    out[4..8].copy_from_slice(&block.to_le_bytes());
    out
}

pub fn dirent(nid: u64, name_offset: u16, file_type: u8) -> [u8; DIRENT_BYTES] {
    let mut out = [0; DIRENT_BYTES];
    out[0..8].copy_from_slice(&nid.to_le_bytes());
    out[8..10].copy_from_slice(&name_offset.to_le_bytes());
    out[10] = file_type;
    out
}

/// The kernel's 32-bit device number: 12 bits of major, 20 of minor.
pub fn rdev(major: u32, minor: u32) -> Result<u32> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(Error::refused(format!("device {major}:{minor}: expected less than 4096:1048576")));
    }
    Ok((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// Major and minor of a 32-bit device number.
pub fn device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff))
}

/// What the superblock tells.
pub struct Super {
    pub root_nid: u16,
    pub inodes: u64,
    pub blocks: u32,
    pub uuid: [u8; 16],
    /// The blob's blocks and the hex text of its hash.
    pub device: Option<(u32, [u8; 64])>,
}

impl Super {
    /// Writes superblock and device table into block 0, and the checksum over the block.
    pub fn write(&self, block: &mut [u8; BLOCK_BYTES]) {
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let s = SUPER_OFFSET;
        put(s, &MAGIC.to_le_bytes());
        put(s + 4, &0u32.to_le_bytes());
        put(s + 8, &(COMPAT_CHECKSUM | COMPAT_MTIME).to_le_bytes());
        put(s + 12, &[BLOCK_BYTES.trailing_zeros() as u8, 0]);
        put(s + 14, &self.root_nid.to_le_bytes());
        put(s + 16, &self.inodes.to_le_bytes());
        put(s + 36, &self.blocks.to_le_bytes());
        put(s + 48, &self.uuid);
        if let Some((blocks, tag)) = &self.device {
            put(s + 80, &(INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE).to_le_bytes());
            put(s + 86, &1u16.to_le_bytes());
            put(s + 88, &((DEVICE_TABLE_OFFSET / DEVICE_SLOT_BYTES) as u16).to_le_bytes());
            put(DEVICE_TABLE_OFFSET, tag);
            put(DEVICE_TABLE_OFFSET + 64, &blocks.to_le_bytes());
        } else {
            // A file that is all hole has a chunk map and no device.
            put(s + 80, &INCOMPAT_CHUNKED_FILE.to_le_bytes());
        }
        let checksum = crc32c(&block[s..]);
        block[s + 4..s + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// CRC-32C as the kernel's `crc32c(~0, ..)` gives it: no final inversion.
pub fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_check_string() {
        assert_eq!(!crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn chunk_formats() {
        assert_eq!(chunk_format(1).unwrap(), CHUNK_INDEXES);
        assert_eq!(chunk_format(4096).unwrap(), CHUNK_INDEXES);
        assert_eq!(chunk_format(4097).unwrap(), CHUNK_INDEXES | 1);
        assert_eq!(chunk_format(8 << 40).unwrap(), CHUNK_INDEXES | 31);
        assert!(chunk_format((8 << 40) + 1).is_err());
    }

    #[test]
    fn device_numbers() {
        assert_eq!(rdev(8, 1).unwrap(), 0x801);
        assert_eq!(rdev(0xabc, 0x12345).unwrap(), 0x123a_bc45);
        for (major, minor) in [(0, 0), (8, 1), (0xabc, 0x12345), (4095, (1 << 20) - 1)] {
            assert_eq!(device(rdev(major, minor).unwrap()), (major, minor));
        }
        assert!(rdev(4096, 0).is_err() && rdev(0, 1 << 20).is_err());
    }
}
