//! The order of a layer's files: as their bytes lie in the blob.
//!
//! Why: an import appends to the blob what it has not seen, in the order of the archive. Written in this order, an
//! export that is imported again makes the same blob, hence the same digest. (Not where an archive had a path twice:
//! then the blob holds bytes that belong to no file, which no export has.)
//!
//! A file that brought bytes brought all blocks up to its highest, so the highest block orders files. Of several with
//! the same highest, one brought it, and the others only repeat: the one that has most of the blocks that are new.

use std::collections::HashSet;

use crate::{
    erofs::{
        BLOCK_BYTES, CHUNK_BYTES,
        read::{Node, Reader},
    },
    error::Result,
};

/// A file that waits for its turn.
pub struct Waiting {
    pub path: Vec<u8>,
    pub nid: u64,
    /// First block of its chunk that lies highest; None where it has none.
    pub highest: Option<u32>,
}

impl Waiting {
    pub fn new(layer: &Reader, path: Vec<u8>, node: &Node) -> Result<Self> {
        let mut highest = None;
        each_chunk(layer, node, |block| highest = highest.max(Some(block)))?;
        Ok(Self { path, nid: node.nid, highest })
    }
}

/// Sorts them.
pub fn sort(layer: &Reader, files: &mut [Waiting]) -> Result<()> {
    files.sort_by_key(|file| file.highest);
    let mut before = None;
    for group in files.chunk_by_mut(|a, b| a.highest == b.highest) {
        if group.len() > 1 && group[0].highest.is_some() {
            let mut first = (0, 0);
            for (number, file) in group.iter().enumerate() {
                let brought = brought(layer, &layer.node(file.nid)?, before)?;
                if brought > first.1 {
                    first = (number, brought);
                }
            }
            group[..=first.0].rotate_right(1);
        }
        before = group[0].highest;
    }
    Ok(())
}

/// How many chunks above `before` the file has, 0 where it does not have them in their order.
fn brought(layer: &Reader, node: &Node, before: Option<u32>) -> Result<usize> {
    let (mut seen, mut last, mut in_order) = (HashSet::new(), None, true);
    each_chunk(layer, node, |block| {
        if Some(block) > before && seen.insert(block) {
            in_order &= Some(block) > last;
            last = Some(block);
        }
    })?;
    Ok(if in_order { seen.len() } else { 0 })
}

/// The first block of each chunk as the writer made it, holes left out.
fn each_chunk(layer: &Reader, node: &Node, mut each: impl FnMut(u32)) -> Result<()> {
    let mut at = 0;
    while let Some(extent) = layer.extent(node, at)? {
        if let Some(block) = extent.block {
            let chunks = extent.bytes.div_ceil(CHUNK_BYTES as u64) as u32;
            (0..chunks).for_each(|n| each(block + n * (CHUNK_BYTES / BLOCK_BYTES) as u32));
        }
        at = extent.offset + extent.bytes;
    }
    Ok(())
}
