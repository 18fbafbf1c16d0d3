//! What has come of a session and is not taken yet, within bounds: of very much, head and tail are kept.

use crate::{
    execute::{OUTPUT_BYTES_MAX, hole},
    python::{backslashreplace, strip_controls},
};

use super::mark;

const HEAD_BYTES: usize = OUTPUT_BYTES_MAX as usize / 2;
/// How far it grows before the middle goes: each byte moves a bounded number of times.
const BYTES_MAX: usize = OUTPUT_BYTES_MAX as usize * 3 / 2;

#[derive(Debug, Default)]
pub(super) struct Transcript {
    bytes: Vec<u8>,
    /// Bytes that are missing, and before which of those kept.
    missing: Option<(usize, u64)>,
    /// The offset in the log of what comes next.
    end: u64,
}

impl Transcript {
    pub(super) fn at(offset: u64) -> Self {
        Self { end: offset, ..Self::default() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The offset in the log of a byte that is not before a gap.
    pub(super) fn offset_of(&self, index: usize) -> u64 {
        self.end - (self.bytes.len() - index) as u64
    }

    /// The byte at an offset of the log, or the nearest that is kept.
    pub(super) fn index_of(&self, offset: u64) -> usize {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.bytes.len().saturating_sub(left)
    }

    /// Gives where the new bytes begin. Indices of before may be stale.
    pub(super) fn push(&mut self, offset: u64, data: &[u8]) -> usize {
        if offset > self.end {
            self.skip(offset);
        }
        let known = usize::try_from(self.end - offset).unwrap_or(usize::MAX).min(data.len());
        self.shrink();
        let fresh = self.bytes.len();
        self.bytes.extend_from_slice(&data[known..]);
        self.end += (data.len() - known) as u64;
        fresh
    }

    /// The log has nothing up to `offset`.
    pub(super) fn skip(&mut self, offset: u64) {
        let bytes = offset.saturating_sub(self.end);
        self.end += bytes;
        let at = self.bytes.len();
        self.missing = Some(match self.missing {
            // One gap is told: what was kept between two goes as well.
            Some((first, before)) => {
                self.bytes.truncate(first);
                (first, before + bytes + (at - first) as u64)
            }
            None => (at, bytes),
        });
    }

    fn shrink(&mut self) {
        if self.bytes.len() < BYTES_MAX {
            return;
        }
        let at = self.missing.map_or(HEAD_BYTES, |(at, _)| at.min(HEAD_BYTES));
        let tail = self.bytes.len() - HEAD_BYTES;
        let before = self.missing.map_or(0, |(_, bytes)| bytes);
        self.bytes.drain(at..tail.max(at));
        self.missing = Some((at, before + (tail.max(at) - at) as u64));
    }

    /// Forgets the first `count` bytes.
    pub(super) fn take(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.missing = self.missing.and_then(|(at, bytes)| Some((at.checked_sub(count)?, bytes)));
    }

    /// What is in the range as their clients see it: no marks, no control sequences, what is missing told.
    pub(super) fn text(&self, from: usize, to: usize) -> String {
        match self.missing {
            Some((at, bytes)) if (from..to).contains(&at) => {
                format!("{}{}{}", self.plain(from, at), hole(bytes), self.plain(at, to))
            }
            _ => self.plain(from, to),
        }
    }

    fn plain(&self, from: usize, to: usize) -> String {
        strip_controls(&backslashreplace(&mark::without(&self.bytes[from..to])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_repeats_and_gaps() {
        let mut text = Transcript::at(10);
        assert_eq!(text.push(10, b"abc"), 0);
        assert_eq!(text.push(12, b"cde"), 3);
        assert_eq!((text.bytes(), text.end(), text.offset_of(5)), (&b"abcde"[..], 15, 15));
        text.take(2);
        assert_eq!((text.bytes(), text.offset_of(0)), (&b"cde"[..], 12));
        text.push(20, b"xyz");
        assert_eq!(text.text(0, 6), format!("cde{}xyz", hole(5)));
    }

    #[test]
    fn of_very_much_head_and_tail_are_kept() {
        let mut text = Transcript::at(0);
        let chunk = vec![b'x'; 256 << 10];
        let mut offset = 0;
        text.push(0, b"first");
        offset += 5;
        for _ in 0..200 {
            text.push(offset, &chunk);
            offset += chunk.len() as u64;
        }
        text.push(offset, b"last");
        assert!(text.bytes().len() < BYTES_MAX + chunk.len());
        assert!(text.bytes().starts_with(b"first") && text.bytes().ends_with(b"last"));
        let (at, missing) = text.missing.unwrap();
        assert_eq!(at, HEAD_BYTES);
        assert_eq!(missing + text.bytes().len() as u64, text.end());
    }
}
