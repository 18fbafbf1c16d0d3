//! The names of a directory: blocks of dirents, each followed by its names.

use super::{Node, Reader, u16_at, u64_at};
use crate::{
    erofs::layout::{BLOCK_BYTES, DIRENT_BYTES, NAME_BYTES_MAX},
    error::{Error, Result},
};

/// A child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub name: Box<[u8]>,
    pub nid: u64,
}

impl Reader {
    /// A directory's children in the order of bytes, no name twice, without `.` and `..`.
    pub fn names(&self, directory: &Node) -> Result<Vec<Name>> {
        if !directory.is_directory() {
            return Err(Error::Damaged("names of what is no directory"));
        }
        let mut names = Vec::new();
        let mut last: Vec<u8> = Vec::new();
        for number in 0..directory.size.div_ceil(BLOCK_BYTES as u64) {
            let block = self.block(directory, number)?;
            parse(&block, |name, nid| {
                if name <= &last[..] {
                    return Err(Error::Damaged("a directory's names are not in order"));
                }
                last = name.to_vec();
                if !matches!(name, b"." | b"..") {
                    names.push(Name { name: name.into(), nid });
                }
                Ok(())
            })?;
        }
        Ok(names)
    }
}

fn parse(block: &[u8], mut each: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
    let bad = Error::Damaged;
    if block.len() < DIRENT_BYTES {
        return Err(bad("a directory's block is cut short"));
    }
    let heads = usize::from(u16_at(block, 8));
    if heads == 0 || !heads.is_multiple_of(DIRENT_BYTES) || heads > block.len() {
        return Err(bad("a directory's block does not tell how many names it has"));
    }
    let start = |at: usize| usize::from(u16_at(block, at + 8));
    for at in (0..heads).step_by(DIRENT_BYTES) {
        let next = at + DIRENT_BYTES;
        let end = if next < heads { start(next) } else { block.len() };
        let name = block.get(start(at)..end).filter(|_| start(at) >= heads);
        let mut name = name.ok_or(bad("a name lies outside its block"))?;
        if next == heads {
            // A block that is not the last is filled up with zeros.
            name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        }
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        if !is_name || name.contains(&0) || name.contains(&b'/') {
            return Err(bad("a name is none"));
        }
        each(name, u64_at(block, at))?;
    }
    Ok(())
}
