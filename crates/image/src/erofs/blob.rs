//! The data blob: bytes of files in 4 KiB blocks, each distinct chunk once.
//!
//! Invariants: append only, so a hash over the blob can run along; a chunk starts on a block and is padded with
//! zeros to the next; nothing is remembered of a chunk but its hash and its place.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use super::layout::{BLOCK_BYTES, HOLE};
use crate::error::{Error, Result};

/// Smaller chunks find a little more to share (1% of a Debian root between 1 MiB and 64 KiB) and cost more index.
pub const CHUNK_BYTES: usize = 256 << 10;
/// What is gathered before a write to the disk.
const BUFFER_BYTES: usize = 1 << 20;

/// Where a file's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// No bytes.
    Nowhere,
    /// One run of blocks, or a hole.
    Run(u32),
    /// A block for each chunk of `CHUNK_BYTES`.
    Chunks(Box<[u32]>),
}

pub struct Blob {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    hasher: blake3::Hasher,
    blocks: u32,
    seen: HashMap<[u8; 32], u32>,
    chunk: Box<[u8]>,
}

/// A finished blob.
pub struct Finished {
    pub blocks: u32,
    pub hash: blake3::Hash,
}

impl Blob {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        Ok(Self {
            path: path.to_owned(),
            file: file.map_err(Error::disk("create the blob"))?,
            buffer: Vec::with_capacity(BUFFER_BYTES + CHUNK_BYTES),
            hasher: blake3::Hasher::new(),
            blocks: 0,
            seen: HashMap::new(),
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
        })
    }

    /// Stores all that `data` gives: its size and its place.
    pub fn store(&mut self, data: &mut dyn Read, bytes_max: u64) -> Result<(u64, Place)> {
        let mut size = 0;
        let mut chunks = Vec::new();
        loop {
            let filled = fill(data, &mut self.chunk)?;
            size += filled as u64;
            if size > bytes_max {
                return Err(Error::refused("the files are larger than this node accepts in one import"));
            }
            if filled > 0 {
                chunks.push(self.store_chunk(filled)?);
            }
            if filled < CHUNK_BYTES {
                return Ok((size, place(chunks)));
            }
        }
    }

    fn store_chunk(&mut self, filled: usize) -> Result<u32> {
        let chunk = &self.chunk[..filled];
        if is_zero(chunk) {
            return Ok(HOLE);
        }
        let hash = *blake3::hash(chunk).as_bytes();
        if let Some(block) = self.seen.get(&hash) {
            return Ok(*block);
        }
        let start = self.blocks;
        let blocks = filled.div_ceil(BLOCK_BYTES);
        let end = start.checked_add(blocks as u32).filter(|end| *end < HOLE);
        self.blocks = end.ok_or_else(|| Error::refused("the files are larger than 16 TiB"))?;
        self.buffer.extend_from_slice(chunk);
        self.buffer.resize(self.buffer.len() + blocks * BLOCK_BYTES - filled, 0);
        self.seen.insert(hash, start);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(start)
    }

    fn flush(&mut self) -> Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_all(&self.buffer).map_err(Error::disk("write the blob"))?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest. An empty blob is removed.
    pub fn finish(mut self) -> Result<Finished> {
        self.flush()?;
        if self.blocks == 0 {
            std::fs::remove_file(&self.path).map_err(Error::disk("remove the empty blob"))?;
        }
        Ok(Finished { blocks: self.blocks, hash: self.hasher.finalize() })
    }
}

/// Chunks that follow each other are one run: most files, then, have an index of one entry.
fn place(chunks: Vec<u32>) -> Place {
    const CHUNK_BLOCKS: u32 = (CHUNK_BYTES / BLOCK_BYTES) as u32;
    let Some(&first) = chunks.first() else { return Place::Nowhere };
    let is_run = if first == HOLE {
        chunks.iter().all(|block| *block == HOLE)
    } else {
        chunks.windows(2).all(|pair| pair[0].checked_add(CHUNK_BLOCKS) == Some(pair[1]))
    };
    if is_run { Place::Run(first) } else { Place::Chunks(chunks.into()) }
}

fn fill(data: &mut dyn Read, chunk: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match data.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::of_reader(e)),
        }
    }
    Ok(filled)
}

fn is_zero(bytes: &[u8]) -> bool {
    // The first bytes decide nearly always; the rest compares with itself shifted by one, which is a memcmp.
    bytes.first() == Some(&0) && bytes[1..] == bytes[..bytes.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob() -> (tempfile::TempDir, Blob) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let blob = Blob::create(&dir.path().join("blob")).unwrap();
        (dir, blob)
    }

    #[test]
    fn equal_files_and_equal_chunks_are_stored_once() {
        let (dir, mut blob) = blob();
        let big: Vec<u8> = (0..CHUNK_BYTES * 3 + 5).map(|i| (i / CHUNK_BYTES + 1) as u8).collect();
        assert_eq!(blob.store(&mut &big[..], u64::MAX).unwrap(), (big.len() as u64, Place::Run(0)));
        let blocks = blob.blocks;
        assert_eq!(blob.store(&mut &big[..], u64::MAX).unwrap().1, Place::Run(0));
        let mut other = big.clone();
        other[0] = 99;
        assert!(matches!(blob.store(&mut &other[..], u64::MAX).unwrap().1, Place::Chunks(c) if c.len() == 4));
        assert_eq!(blob.blocks, blocks + 64, "only the first chunk differs");
        let done = blob.finish().unwrap();
        let bytes = std::fs::read(dir.path().join("blob")).unwrap();
        assert_eq!(bytes.len(), done.blocks as usize * BLOCK_BYTES);
        assert_eq!(blake3::hash(&bytes), done.hash);
    }

    #[test]
    fn zeros_take_no_room_and_an_empty_blob_no_file() {
        let (dir, mut blob) = blob();
        assert_eq!(blob.store(&mut std::io::empty(), 0).unwrap(), (0, Place::Nowhere));
        assert_eq!(blob.store(&mut &vec![0; CHUNK_BYTES + 1][..], u64::MAX).unwrap().1, Place::Run(HOLE));
        assert_eq!(blob.finish().unwrap().blocks, 0);
        assert!(!dir.path().join("blob").exists());
    }

    #[test]
    fn the_bound_on_bytes_holds() {
        let (_dir, mut blob) = blob();
        assert!(blob.store(&mut &[1; 10][..], 9).is_err());
        assert!(blob.store(&mut std::io::repeat(0), 1 << 30).is_err(), "an endless reader ends");
    }
}
