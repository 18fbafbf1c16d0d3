//! An inode: what it is, whose it is, its xattrs, and where its data lies.

use super::{Reader, u16_at, u32_at, u64_at};
use crate::{
    erofs::{
        Kind,
        layout::{BLOCK_BYTES, Data, INODE_BYTES, SLOT_BYTES, device},
        tree::xattr_name,
    },
    error::{Error, Result},
};

const XATTR_HEADER_BYTES: usize = 12;
const SYMLINK_BYTES_MAX: u64 = 4095;
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// One inode of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number in the layer: names with one number are hard links of each other.
    pub nid: u64,
    /// Never a `Hardlink`.
    pub kind: Kind,
    /// The lower twelve bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub links: u32,
    pub size: u64,
    /// Full names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) data: Data,
    /// First block, or chunk format.
    pub(super) union: u32,
    /// Where inode and xattrs end.
    pub(super) end: u64,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Whether overlayfs takes it as the absence of what is below.
    pub fn is_whiteout(&self) -> bool {
        self.kind == Kind::Char { major: 0, minor: 0 }
    }

    /// Whether overlayfs hides what is below this directory.
    pub fn is_opaque(&self) -> bool {
        self.is_directory() && self.xattrs.iter().any(|(name, value)| name == OPAQUE && value == b"y")
    }
}

impl Reader {
    /// The inode of that number.
    pub fn node(&self, nid: u64) -> Result<Node> {
        let at = nid.checked_mul(SLOT_BYTES).ok_or(Error::Damaged("an inode lies past its end"))?;
        let head = self.meta.take(at, INODE_BYTES)?;
        let data = match u16_at(&head, 0) {
            1 => Data::Plain,
            5 => Data::Inline,
            9 => Data::Chunked,
            _ => return Err(Error::Damaged("an inode of a format that the writer does not use")),
        };
        let xattr_bytes = match usize::from(u16_at(&head, 2)) {
            0 => 0,
            count => XATTR_HEADER_BYTES + (count - 1) * 4,
        };
        let mode = u16_at(&head, 4);
        let mtime_ns = u32_at(&head, 40);
        if mtime_ns >= 1_000_000_000 {
            return Err(Error::Damaged("an inode's time is none"));
        }
        let mut node = Node {
            nid,
            kind: Kind::File,
            mode: u32::from(mode & 0o7777),
            uid: u32_at(&head, 24),
            gid: u32_at(&head, 28),
            mtime_s: u64_at(&head, 32).cast_signed(),
            mtime_ns,
            links: u32_at(&head, 44),
            size: u64_at(&head, 8),
            xattrs: xattrs(&self.meta.take(at + INODE_BYTES as u64, xattr_bytes)?)?,
            data,
            union: u32_at(&head, 16),
            end: at + (INODE_BYTES + xattr_bytes) as u64,
        };
        node.kind = self.kind(mode, &node)?;
        Ok(node)
    }

    fn kind(&self, mode: u16, node: &Node) -> Result<Kind> {
        let (major, minor) = device(node.union);
        Ok(match mode & 0o170_000 {
            0o100_000 => self.check_file(node).map(|()| Kind::File)?,
            0o040_000 => self.check_plain(node).map(|()| Kind::Directory)?,
            0o120_000 => {
                self.check_plain(node)?;
                if !(1..=SYMLINK_BYTES_MAX).contains(&node.size) {
                    return Err(Error::Damaged("a symlink's target has an impossible length"));
                }
                let target = self.block(node, 0)?;
                if target.contains(&0) {
                    return Err(Error::Damaged("a symlink's target holds a NUL"));
                }
                Kind::Symlink(target)
            }
            0o020_000 => Kind::Char { major, minor },
            0o060_000 => Kind::Block { major, minor },
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            _ => return Err(Error::Damaged("an inode of no type")),
        })
    }

    /// That the data of a directory or symlink is there in full.
    fn check_plain(&self, node: &Node) -> Result<()> {
        let (block, tail) = (BLOCK_BYTES as u64, node.size % BLOCK_BYTES as u64);
        let start = u64::from(node.union) * block;
        match node.data {
            Data::Plain => self.meta.check(start, node.size),
            Data::Inline => {
                self.meta.check(node.end, tail)?;
                self.meta.check(start, node.size - tail)
            }
            Data::Chunked => Err(Error::Damaged("a directory or symlink in chunks")),
        }
    }

    /// The bytes of a directory or symlink in its block of that number. Its place was checked.
    pub(super) fn block(&self, node: &Node, number: u64) -> Result<Vec<u8>> {
        let block = BLOCK_BYTES as u64;
        let from = number * block;
        let len = node.size.saturating_sub(from).min(block);
        let is_tail = node.data == Data::Inline && from + len == node.size;
        let at = if is_tail { node.end } else { u64::from(node.union) * block + from };
        self.meta.take(at, len as usize)
    }
}

/// What stands after the inode: a header that the writer leaves empty, then the entries.
fn xattrs(bytes: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut xattrs = Vec::new();
    let mut rest = bytes.get(XATTR_HEADER_BYTES..).unwrap_or_default();
    while !rest.is_empty() {
        let cut = || Error::Damaged("an extended attribute is cut short");
        let head = rest.get(..4).ok_or_else(cut)?;
        let (name_bytes, value_bytes) = (usize::from(head[0]), usize::from(u16_at(head, 2)));
        let end = 4 + name_bytes + value_bytes;
        let name = rest.get(4..4 + name_bytes).ok_or_else(cut)?;
        let value = rest.get(4 + name_bytes..end).ok_or_else(cut)?;
        let full =
            xattr_name(head[1], name).ok_or(Error::Damaged("an extended attribute of no namespace"))?;
        xattrs.push((full, value.to_vec()));
        rest = rest.get(end.next_multiple_of(4)..).ok_or_else(cut)?;
    }
    Ok(xattrs)
}
