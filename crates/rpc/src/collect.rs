//! An exec's stream gathered into one plain answer: head and tail of each output, the middle dropped and counted.
//!
//! Invariant: of each output at most `output_bytes_max` is kept in the answer, and at most about one and a half
//! times that in memory, however much the command writes.

use api::{
    Code, Error, Result,
    arrow::ExecStream,
    exec::{ExecResult, Exit, Output},
    frame::{ServerFrame, Stream},
};
use bytes::{Buf, Bytes, BytesMut};

/// Reads `stream` to its end. Errors: what the stream ends with where that is not an exit.
pub async fn collect(mut stream: ExecStream, output_bytes_max: u64) -> Result<ExecResult> {
    let mut gathered = Gathered::new(output_bytes_max);
    while let Some(frame) = stream.output.recv().await {
        if let Some(exit) = gathered.add(frame)? {
            return Ok(gathered.finish(stream.exec_id, Some(exit)));
        }
    }
    Err(Error::new(
        Code::Internal,
        format!(
            "the stream of {} ended before its exit; attach to it again, or read its output",
            stream.exec_id
        ),
    ))
}

/// What has come of an exec so far.
pub(crate) struct Gathered {
    stdout: Keeper,
    stderr: Keeper,
}

impl Gathered {
    pub(crate) fn new(output_bytes_max: u64) -> Self {
        Self { stdout: Keeper::new(output_bytes_max), stderr: Keeper::new(output_bytes_max) }
    }

    /// Some when the command has ended. Errors: the stream's.
    pub(crate) fn add(&mut self, frame: ServerFrame) -> Result<Option<Exit>> {
        match frame {
            ServerFrame::Output { stream, offset, data } => self.of(stream).add(offset, data),
            ServerFrame::Dropped { stream, offset, bytes } => {
                self.of(stream).skip(offset.saturating_add(bytes))
            }
            ServerFrame::Exit(exit) => return Ok(Some(exit)),
            ServerFrame::Error(e) => return Err(e),
            ServerFrame::Started(_) | ServerFrame::Alive => {}
        }
        Ok(None)
    }

    fn of(&mut self, stream: Stream) -> &mut Keeper {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Bytes seen of each output, kept or not.
    #[cfg(feature = "serve")]
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.stdout.total, self.stderr.total)
    }

    pub(crate) fn finish(self, exec_id: api::ExecId, exit: Option<Exit>) -> ExecResult {
        ExecResult { exec_id, exit, stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }
}

/// Head and tail of one output.
struct Keeper {
    head_max: usize,
    tail_max: usize,
    head: BytesMut,
    /// Something after the head was dropped, or the head is full: what comes goes to the tail.
    head_closed: bool,
    tail: BytesMut,
    /// The offset where the next byte belongs.
    total: u64,
}

impl Keeper {
    fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let tail_max = bytes_max / 2;
        Self {
            head_max: bytes_max - tail_max,
            tail_max,
            head: BytesMut::new(),
            head_closed: false,
            tail: BytesMut::new(),
            total: 0,
        }
    }

    fn add(&mut self, offset: u64, mut data: Bytes) {
        if offset > self.total {
            self.skip(offset);
        }
        // What came already is not taken twice.
        let known = self.total - offset;
        if known >= data.len() as u64 {
            return;
        }
        data.advance(known as usize);
        self.total += data.len() as u64;
        if !self.head_closed {
            let room = (self.head_max - self.head.len()).min(data.len());
            self.head.extend_from_slice(&data.split_to(room));
            self.head_closed = self.head.len() == self.head_max;
        }
        self.add_tail(&data);
    }

    fn add_tail(&mut self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(self.tail_max)..];
        // Half as much again before it moves, so that each byte moves a bounded number of times.
        if self.tail.len() + data.len() > self.tail_max + self.tail_max / 2 {
            self.tail.advance(self.tail.len() - (self.tail_max - data.len()).min(self.tail.len()));
        }
        self.tail.extend_from_slice(data);
    }

    /// Bytes up to `offset` are gone. The answer has one hole, so what the tail holds goes too.
    fn skip(&mut self, offset: u64) {
        if offset <= self.total {
            return;
        }
        self.total = offset;
        self.head_closed = true;
        self.tail.clear();
    }

    fn finish(mut self) -> Output {
        let excess = self.tail.len().saturating_sub(self.tail_max);
        self.tail.advance(excess);
        let dropped = self.total - (self.head.len() + self.tail.len()) as u64;
        let dropped_at = if dropped > 0 { self.head.len() as u64 } else { 0 };
        let data = if self.head.is_empty() {
            self.tail
        } else {
            self.head.extend_from_slice(&self.tail);
            self.head
        };
        Output {
            data: data.freeze().into(),
            bytes_total: self.total,
            bytes_dropped: dropped,
            dropped_at,
            truncated: dropped > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(max: u64, parts: &[&[u8]]) -> Output {
        let mut keeper = Keeper::new(max);
        let mut offset = 0;
        for part in parts {
            keeper.add(offset, Bytes::copy_from_slice(part));
            offset += part.len() as u64;
        }
        keeper.finish()
    }

    #[test]
    fn what_fits_is_whole_and_what_does_not_keeps_head_and_tail() {
        let whole = kept(4, &[b"ab", b"cd"]);
        assert_eq!((&whole.data.0[..], whole.truncated, whole.bytes_total), (&b"abcd"[..], false, 4));
        let cut = kept(4, &[b"abc", b"defg"]);
        assert_eq!(&cut.data.0[..], b"abfg");
        assert_eq!((cut.bytes_total, cut.bytes_dropped, cut.dropped_at, cut.truncated), (7, 3, 2, true));
        let none = kept(0, &[b"abc"]);
        assert_eq!((none.data.0.len(), none.bytes_dropped), (0, 3));
    }

    #[test]
    fn a_hole_of_the_spool_and_a_repeat_are_counted_right() {
        let mut keeper = Keeper::new(100);
        keeper.add(0, Bytes::from_static(b"abc"));
        keeper.skip(10);
        keeper.add(10, Bytes::from_static(b"xyz"));
        keeper.add(11, Bytes::from_static(b"yz!"));
        let out = keeper.finish();
        assert_eq!(&out.data.0[..], b"abcxyz!");
        assert_eq!((out.bytes_total, out.bytes_dropped, out.dropped_at), (14, 7, 3));
    }

    proptest! {
        #[test]
        fn head_and_tail_are_those_of_the_whole(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..30),
            max in 0u64..200,
        ) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let whole = parts.concat();
            let out = kept(max, &parts);
            prop_assert_eq!(out.bytes_total, whole.len() as u64);
            if whole.len() as u64 <= max {
                prop_assert_eq!(&out.data.0[..], &whole[..]);
                prop_assert!(!out.truncated);
            } else {
                prop_assert_eq!(out.data.0.len() as u64, max);
                let at = out.dropped_at as usize;
                prop_assert_eq!(&out.data.0[..at], &whole[..at]);
                let tail = &out.data.0[at..];
                prop_assert_eq!(tail, &whole[whole.len() - tail.len()..]);
                prop_assert_eq!(out.bytes_dropped, whole.len() as u64 - max);
            }
        }
    }
}
