//! Sparse files in tar: the map of what is stored, in its four encodings.
//!
//! Invariants: a map is sorted, lies within the file's size, and accounts for every stored byte; it is bounded.

use std::io::Read;

use super::{
    TarReader,
    header::{BLOCK, unsigned},
    pax::decimal,
};
use crate::error::{Error, Result, show};

/// Past this an archive is playing games; memory is 16 bytes each.
const EXTENTS_MAX: usize = 1 << 20;

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    Hole(u64),
    Data(u64),
}

/// Which stretches of a file are stored: (offset, length).
#[derive(Debug, Default)]
pub struct Map {
    pub size: u64,
    extents: Vec<(u64, u64)>,
}

impl Map {
    fn push(&mut self, offset: u64, length: u64, path: &[u8]) -> Result<()> {
        if self.extents.len() >= EXTENTS_MAX {
            return Err(bad(path));
        }
        self.extents.push((offset, length));
        Ok(())
    }

    /// What the reader of the file will see, in reverse order.
    pub fn segments(&self, stored: u64, path: &[u8]) -> Result<Vec<Segment>> {
        let (mut at, mut left) = (0u64, stored);
        let mut segments = Vec::with_capacity(self.extents.len() * 2 + 1);
        for (offset, length) in &self.extents {
            let hole = offset.checked_sub(at).ok_or_else(|| bad(path))?;
            left = left.checked_sub(*length).ok_or_else(|| bad(path))?;
            at = offset.checked_add(*length).filter(|end| *end <= self.size).ok_or_else(|| bad(path))?;
            segments.extend([Segment::Hole(hole), Segment::Data(*length)]);
        }
        if left != 0 {
            return Err(bad(path));
        }
        segments.push(Segment::Hole(self.size - at));
        segments.reverse();
        Ok(segments)
    }
}

fn bad(path: &[u8]) -> Error {
    Error::refused(format!("{}: its map of holes makes no sense", show(path)))
}

/// The `GNU.sparse.*` records.
#[derive(Default)]
pub struct PaxSparse {
    pub name: Option<Vec<u8>>,
    major: u64,
    real_size: Option<u64>,
    numbers: Option<Vec<u64>>,
}

impl PaxSparse {
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"major" => self.major = decimal(value)?,
            b"size" | b"realsize" => self.real_size = Some(decimal(value)?),
            b"map" => self.numbers = Some(value.split(|b| *b == b',').map(decimal).collect::<Result<_>>()?),
            b"numblocks" => self.numbers = Some(self.numbers.take().unwrap_or_default()),
            b"offset" | b"numbytes" => self.numbers.get_or_insert_default().push(decimal(value)?),
            _ => {}
        }
        Ok(())
    }
}

impl<R: Read> TarReader<R> {
    /// The old GNU form: four extents in the header, more in blocks that follow it.
    pub(super) fn gnu_map(&mut self, block: &[u8; BLOCK], path: &[u8]) -> Result<Map> {
        let mut map = Map { size: unsigned(&block[483..495])?, extents: Vec::new() };
        push_all(&mut map, &block[386..482], path)?;
        let mut more = block[482] != 0;
        while more {
            let mut next = [0; BLOCK];
            self.take(&mut next)?;
            push_all(&mut map, &next[..504], path)?;
            more = next[504] != 0;
        }
        Ok(map)
    }

    /// The PAX forms: numbers in records, or (1.0) as text before the data.
    pub(super) fn pax_map(&mut self, sparse: &PaxSparse, path: &[u8]) -> Result<Option<Map>> {
        let Some(size) = sparse.real_size else { return Ok(None) };
        let mut map = Map { size, extents: Vec::new() };
        if sparse.major == 1 {
            self.read_map(&mut map, path)?;
        } else {
            let numbers = sparse.numbers.as_deref().ok_or_else(|| bad(path))?;
            let (pairs, rest) = numbers.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(bad(path));
            }
            pairs.iter().try_for_each(|pair| map.push(pair[0], pair[1], path))?;
        }
        Ok(Some(map))
    }

    /// A count, then as many pairs, each number on its line, padded to a block.
    fn read_map(&mut self, map: &mut Map, path: &[u8]) -> Result<()> {
        let mut text = Lines { block: [0; BLOCK], at: BLOCK };
        let count = text.number(self, path)?;
        for _ in 0..count {
            let offset = text.number(self, path)?;
            let length = text.number(self, path)?;
            map.push(offset, length, path)?;
        }
        Ok(())
    }
}

fn push_all(map: &mut Map, entries: &[u8], path: &[u8]) -> Result<()> {
    for entry in entries.chunks_exact(24).take_while(|entry| entry[0] != 0) {
        map.push(unsigned(&entry[..12])?, unsigned(&entry[12..])?, path)?;
    }
    Ok(())
}

/// Numbers, a line each, taken from the front of an entry's data block by block.
struct Lines {
    block: [u8; BLOCK],
    at: usize,
}

impl Lines {
    fn number<R: Read>(&mut self, tar: &mut TarReader<R>, path: &[u8]) -> Result<u64> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK {
                tar.stored_left = tar.stored_left.checked_sub(BLOCK as u64).ok_or_else(|| bad(path))?;
                tar.take(&mut self.block)?;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return decimal(&digits).map_err(|_| bad(path)),
                _ if digits.len() < 20 => digits.push(byte),
                _ => return Err(bad(path)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_accounts_for_every_byte() {
        let map = Map { size: 100, extents: vec![(10, 5), (15, 5), (90, 10)] };
        let mut segments = map.segments(20, b"f").unwrap();
        segments.reverse();
        let seen: u64 = segments
            .iter()
            .map(|s| match s {
                Segment::Hole(n) | Segment::Data(n) => n,
            })
            .sum();
        assert_eq!(seen, 100);
        assert!(map.segments(19, b"f").is_err() && map.segments(21, b"f").is_err());
        for extents in [vec![(10, 5), (14, 1)], vec![(95, 6)], vec![(u64::MAX, 2)]] {
            let stored = extents.iter().map(|(_, n)| n).sum();
            assert!(Map { size: 100, extents }.segments(stored, b"f").is_err());
        }
    }
}
