//! The bytes of a file: its chunk map, one entry at a time, and a reader over it.

use std::{
    io::{self, Read},
    os::unix::fs::FileExt,
};

use super::{Node, Reader, chunk_bytes, u16_at, u32_at};
use crate::{
    erofs::{
        Kind,
        layout::{self, BLOCK_BYTES, HOLE},
    },
    error::{Error, Result},
};

const INDEX_BYTES: u64 = 8;

/// A part of a file that lies together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts in the file.
    pub offset: u64,
    pub bytes: u64,
    /// Its first block in the blob; None: zeros.
    pub block: Option<u32>,
}

/// Reads a file. Holes are zeros.
pub struct Data<'a> {
    reader: &'a Reader,
    node: &'a Node,
    at: u64,
    extent: Option<Extent>,
}

impl Reader {
    /// That a file's chunk map is there in full.
    pub(super) fn check_file(&self, node: &Node) -> Result<()> {
        match (node.size, node.data) {
            (0, _) => Ok(()),
            (size, layout::Data::Chunked) => {
                let chunks = size.div_ceil(chunk_bytes(node.union)?);
                let len = chunks.checked_mul(INDEX_BYTES).ok_or(Error::Damaged("an impossible size"))?;
                self.meta.check(map_offset(node), len)
            }
            _ => Err(Error::Damaged("a file's bytes are not in chunks")),
        }
    }

    /// A file's part that holds the byte at `offset`; None at its end, and of what is no file.
    pub fn extent(&self, node: &Node, offset: u64) -> Result<Option<Extent>> {
        if node.kind != Kind::File || offset >= node.size {
            return Ok(None);
        }
        let chunk = chunk_bytes(node.union)?;
        let number = offset / chunk;
        let index = self.meta.take(map_offset(node) + number * INDEX_BYTES, INDEX_BYTES as usize)?;
        let (start, block) = (number * chunk, u32_at(&index, 4));
        let bytes = chunk.min(node.size - start);
        let block = match (u16_at(&index, 2), block) {
            (_, HOLE) => None,
            (1, block) => Some(block),
            _ => return Err(Error::Damaged("a chunk on a device that is not there")),
        };
        let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
        if block.is_some_and(|block| u64::from(block) + blocks > u64::from(self.blob_blocks)) {
            return Err(Error::Damaged("a chunk lies past the blob's end"));
        }
        Ok(Some(Extent { offset: start, bytes, block }))
    }

    /// A file's bytes; none of what is no file.
    pub fn data<'a>(&'a self, node: &'a Node) -> Data<'a> {
        Data { reader: self, node, at: 0, extent: None }
    }
}

fn map_offset(node: &Node) -> u64 {
    node.end.next_multiple_of(INDEX_BYTES)
}

impl Read for Data<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let is_within = |e: &Extent| (e.offset..e.offset + e.bytes).contains(&self.at);
        if !self.extent.as_ref().is_some_and(is_within) {
            self.extent = self.reader.extent(self.node, self.at).map_err(Error::into_io)?;
        }
        let Some(extent) = self.extent else { return Ok(0) };
        let within = self.at - extent.offset;
        let wanted = usize::try_from(extent.bytes - within).map_or(out.len(), |left| left.min(out.len()));
        match (extent.block, &self.reader.blob) {
            (None, _) => out[..wanted].fill(0),
            (Some(block), Some(blob)) => {
                let place = u64::from(block) * BLOCK_BYTES as u64 + within;
                let read = blob.read_exact_at(&mut out[..wanted], place);
                read.map_err(|e| Error::disk("read a layer's blob")(e).into_io())?;
            }
            (Some(_), None) => return Err(Error::Damaged("its blob is missing").into_io()),
        }
        self.at += wanted as u64;
        Ok(wanted)
    }
}
