//! The file that keeps one output stream of one exec: its head, and a ring of its tail.
//!
//! ```text
//! | header page: total, hole from, hole to, head, tail (u64 each) | head | ring: tail + slack |
//! ```
//! Everything is derived from `total`. A write puts its bytes first and the header after, so what a `kill -9` leaves is
//! whole up to the total that the header tells. The slack of the ring is the longest single write: bytes that the
//! header does not count yet never lie over bytes that it says are kept.
//!
//! The hole is what the agent itself had lost (see [`Spool::skip`]); it is empty but after a crash in a bad moment.
//!
//! The file is sparse and never larger than head + tail + slack + one page.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
};

use api::limit;
use bytes::Bytes;

const HEADER_BYTES: u64 = 4096;

/// Sizes of a spool. The service has one; tests use small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) head_bytes: u64,
    pub(crate) tail_bytes: u64,
    /// The longest single write.
    pub(crate) write_bytes_max: u64,
    /// How far the process may run ahead of the slowest attached client.
    pub(crate) lag_bytes_max: u64,
    /// What a stream keeps in memory before it gets a file.
    pub(crate) memory_bytes_max: u64,
}

/// See [`Shape::lag_bytes_max`]; with a write on top it must fit in the tail, so that no unread byte is overwritten.
const LAG_BYTES_MAX: u64 = 1 << 20;
/// See [`Shape::memory_bytes_max`]; aether holds these bytes meanwhile.
const MEMORY_BYTES_MAX: u64 = 64 << 10;

const _: () = assert!(LAG_BYTES_MAX + limit::FRAME_BYTES_MAX as u64 <= limit::SPOOL_TAIL_BYTES);
const _: () = assert!(LAG_BYTES_MAX + limit::FRAME_BYTES_MAX as u64 <= Shape::CROWDED.tail_bytes);
const _: () = assert!(MEMORY_BYTES_MAX < limit::AETHER_BUFFER_BYTES as u64);
const _: () = assert!(MEMORY_BYTES_MAX <= limit::SPOOL_HEAD_BYTES);

impl Shape {
    pub(crate) const SERVICE: Shape = Shape {
        head_bytes: limit::SPOOL_HEAD_BYTES,
        tail_bytes: limit::SPOOL_TAIL_BYTES,
        write_bytes_max: limit::FRAME_BYTES_MAX as u64,
        lag_bytes_max: LAG_BYTES_MAX,
        memory_bytes_max: MEMORY_BYTES_MAX,
    };
    /// For the commands of a sandbox that runs many at once, so that its share of the node's disk has a bound.
    pub(crate) const CROWDED: Shape =
        Shape { head_bytes: 128 << 10, tail_bytes: LAG_BYTES_MAX + (512 << 10), ..Self::SERVICE };
    /// Small enough for tests to go round the ring many times.
    #[cfg(test)]
    pub(crate) const SMALL: Shape =
        Shape { head_bytes: 10, tail_bytes: 16, write_bytes_max: 5, lag_bytes_max: 11, memory_bytes_max: 6 };

    fn ring_bytes(self) -> u64 {
        self.tail_bytes + self.write_bytes_max
    }

    /// The first byte of the tail that is kept when `total` bytes were written. Between the head and it is the gap.
    pub(crate) fn tail_start(self, total: u64) -> u64 {
        total.saturating_sub(self.tail_bytes).max(self.head_bytes)
    }

    /// Bytes kept of `total`.
    pub(crate) fn bytes_kept(self, total: u64) -> u64 {
        total.min(self.head_bytes) + total.saturating_sub(self.tail_start(total))
    }

    /// Where byte `offset` lies, and how many lie behind it without a break.
    fn place(self, offset: u64) -> (u64, u64) {
        match offset.checked_sub(self.head_bytes) {
            None => (HEADER_BYTES + offset, self.head_bytes - offset),
            Some(behind) => {
                let at = behind % self.ring_bytes();
                (HEADER_BYTES + self.head_bytes + at, self.ring_bytes() - at)
            }
        }
    }
}

/// An open spool. It does not know its total: that is its owner's.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    shape: Shape,
}

impl Spool {
    /// A new spool, or the old one emptied.
    pub(crate) fn create(path: &Path, shape: Shape) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let header = [0, 0, 0, shape.head_bytes, shape.tail_bytes].map(u64::to_le_bytes);
        file.write_all_at(header.as_flattened(), 0)?;
        Ok(Self { file, shape })
    }

    /// An old spool, its total and its hole. It has the sizes that it was made with; the rest is as in `shape`.
    pub(crate) fn open(path: &Path, shape: Shape) -> io::Result<(Self, u64, Range<u64>)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut header = [0; 40];
        file.read_exact_at(&mut header, 0)?;
        let number = |n: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[n * 8 + byte]));
        let shape = Shape { head_bytes: number(3), tail_bytes: number(4), ..shape };
        if shape.lag_bytes_max + shape.write_bytes_max > shape.tail_bytes || shape.head_bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a header that is not a spool's"));
        }
        Ok((Self { file, shape }, number(0), number(1)..number(2)))
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The stream goes on at `total`; what is in `hole`, up to there, nobody has.
    pub(crate) fn skip(&self, total: u64, hole: &Range<u64>) -> io::Result<()> {
        let header: Vec<u8> = [total, hole.start, hole.end].into_iter().flat_map(u64::to_le_bytes).collect();
        self.file.write_all_at(&header, 0)
    }

    /// Puts `data` behind the first `total` bytes. Blocks.
    pub(crate) fn append(&self, total: u64, data: &[u8]) -> io::Result<()> {
        let (mut total, mut rest) = (total, data);
        while !rest.is_empty() {
            let count = rest.len().min(self.shape.write_bytes_max as usize);
            self.put(total, &rest[..count])?;
            total += count as u64;
            self.file.write_all_at(&total.to_le_bytes(), 0)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn put(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (at, room) = self.shape.place(offset);
            let count = (room as usize).min(data.len());
            self.file.write_all_at(&data[..count], at)?;
            offset += count as u64;
            data = &data[count..];
        }
        Ok(())
    }

    /// Bytes from `offset` on, at most `count`, at least one. The owner knows that they are kept. Blocks.
    pub(crate) fn read(&self, offset: u64, count: u64) -> io::Result<Bytes> {
        let (at, room) = self.shape.place(offset);
        let mut data = vec![0; count.min(room) as usize];
        self.file.read_exact_at(&mut data, at)?;
        Ok(data.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Shape = Shape::SMALL;

    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(31) >> 2) as u8
    }

    /// Reads all that is kept from `from` on; returns (offset, byte) pairs.
    fn replay(spool: &Spool, total: u64, from: u64) -> Vec<(u64, u8)> {
        let (mut at, mut seen) = (from, Vec::new());
        while at < total {
            let tail = spool.shape.tail_start(total);
            if at >= spool.shape.head_bytes && at < tail {
                at = tail;
                continue;
            }
            let end = if at < spool.shape.head_bytes { spool.shape.head_bytes.min(total) } else { total };
            let data = spool.read(at, end - at).unwrap();
            assert!(!data.is_empty());
            seen.extend(data.iter().enumerate().map(|(n, b)| (at + n as u64, *b)));
            at += data.len() as u64;
        }
        seen
    }

    proptest! {
        /// Any writes, a reopen or a torn write after any of them, a replay from any offset: the exact bytes, or the
        /// gap between head and tail, and nothing else missing.
        #[test]
        fn exact_bytes_or_the_declared_gap(
            steps in proptest::collection::vec((0usize..12, 0u8..4), 1..30),
            from in 0u64..200,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let mut spool = Spool::create(&path, SMALL).unwrap();
            let mut total = 0;
            for (count, then) in steps {
                let data: Vec<u8> = (total..total + count as u64).map(byte).collect();
                spool.append(total, &data).unwrap();
                total += count as u64;
                if then == 0 {
                    // Killed between the bytes and the header of the next write.
                    spool.put(total, &[0xee; 5]).unwrap();
                }
                if then <= 1 {
                    let (reopened, told, _) = Spool::open(&path, SMALL).unwrap();
                    prop_assert_eq!(told, total);
                    spool = reopened;
                }
            }
            let seen = replay(&spool, total, from);
            for (offset, seen) in &seen {
                prop_assert_eq!(*seen, byte(*offset));
            }
            let gap = SMALL.head_bytes..SMALL.tail_start(total);
            let expected: Vec<u64> = (from..total).filter(|o| !gap.contains(o)).collect();
            prop_assert_eq!(seen.iter().map(|(o, _)| *o).collect::<Vec<_>>(), expected);
            prop_assert!(std::fs::metadata(&path).unwrap().len() <= HEADER_BYTES + 10 + 16 + 5);
            prop_assert_eq!(SMALL.bytes_kept(total), total.min(26));
        }
    }

    #[test]
    fn a_spool_without_a_header_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), b"123").unwrap();
        assert!(Spool::open(&dir.path().join("s"), SMALL).is_err());
    }
}
