//! What a command wrote to one stream and nobody has acknowledged yet: a bounded window of an endless log.

use api::limit::{AETHER_BUFFER_BYTES, FRAME_BYTES_MAX};
use bytes::{Buf, Bytes, BytesMut};

/// Below this much, an allocation is not worth its pages once it is empty.
const KEEP_BYTES: usize = 4 << 10;

#[derive(Default)]
pub struct Log {
    /// The offset of the first byte held.
    start: u64,
    held: BytesMut,
    /// Every client has been sent all below this.
    sent: u64,
    /// Nothing more will come.
    pub closed: bool,
}

impl Log {
    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.start + self.held.len() as u64
    }

    /// Bytes that may be appended now.
    pub fn room(&self) -> usize {
        AETHER_BUFFER_BYTES.saturating_sub(self.held.len())
    }

    pub fn append(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
    }

    /// Gives up the bytes below `offset`. True if that made room.
    pub fn acknowledge(&mut self, offset: u64) -> bool {
        let count = offset.min(self.end()).saturating_sub(self.start) as usize;
        self.held.advance(count);
        self.start += count as u64;
        if self.held.is_empty() && self.held.capacity() > KEEP_BYTES {
            self.held = BytesMut::new();
        }
        count > 0
    }

    /// A client was sent all below `offset`.
    pub fn note_sent(&mut self, offset: u64) {
        self.sent = self.sent.max(offset);
    }

    /// Gives up what was sent, acknowledged or not.
    pub fn acknowledge_sent(&mut self) {
        self.acknowledge(self.sent);
    }

    /// What a client at `offset` reads next.
    pub fn read(&self, offset: u64) -> Read {
        if offset < self.start {
            return Read::Lost(self.start - offset);
        }
        // An offset beyond the end waits for the log to get there.
        let skip = (offset - self.start).min(self.held.len() as u64) as usize;
        let rest = &self.held[skip..];
        match rest.len().min(FRAME_BYTES_MAX) {
            0 if self.closed => Read::End,
            0 => Read::Wait,
            length => Read::Data(Bytes::copy_from_slice(&rest[..length])),
        }
    }
}

/// The next step of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Data(Bytes),
    /// This many bytes were given up before this reader came.
    Lost(u64),
    Wait,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_acknowledged() {
        let mut log = Log::default();
        log.append(b"hello");
        assert_eq!(log.read(0), Read::Data(Bytes::from_static(b"hello")));
        assert_eq!(log.read(3), Read::Data(Bytes::from_static(b"lo")));
        assert_eq!(log.read(5), Read::Wait);
        assert!(log.acknowledge(2));
        assert!(!log.acknowledge(1), "an old acknowledgement changes nothing");
        assert_eq!(log.read(0), Read::Lost(2));
        assert_eq!(log.read(2), Read::Data(Bytes::from_static(b"llo")));
        assert!(log.acknowledge(u64::MAX));
        assert_eq!((log.end(), log.room()), (5, AETHER_BUFFER_BYTES));
        log.closed = true;
        assert_eq!(log.read(5), Read::End);
    }

    #[test]
    fn what_was_sent_can_be_given_up() {
        let mut log = Log::default();
        log.append(b"abc");
        log.note_sent(2);
        log.acknowledge_sent();
        assert_eq!(log.read(2), Read::Data(Bytes::from_static(b"c")));
    }
}
