//! Frames over a socket, for both ends: few copies, few system calls, bounded memory.
//!
//! Writing: what is queued goes out in one vectored write; bulk data is never copied. Reading: the buffer grows to
//! the frame that is announced (bounded by the codec) and shrinks back with it, so that an idle stream costs little.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use api::{
    Result,
    frame::{ClientFrame, Frame, ServerFrame},
    limit::FRAME_BYTES_MAX,
};
use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

/// Below this, copying beside the head is cheaper than a slice of its own.
const INLINE_BYTES: usize = 1024;
/// One read asks for at least this.
const READ_BYTES: usize = 16 << 10;
const HEAD_BYTES: usize = 5;

/// A frame whose data can be cut where it is over the limit of one frame.
pub(crate) trait Cut: Frame {
    /// Leaves at most `FRAME_BYTES_MAX` bytes of data in `self` and returns the rest.
    fn cut(&mut self) -> Option<Self>;
}

impl Cut for ServerFrame {
    fn cut(&mut self) -> Option<Self> {
        let Self::Output { stream, offset, data } = self else { return None };
        if data.len() <= FRAME_BYTES_MAX {
            return None;
        }
        let rest = data.split_off(FRAME_BYTES_MAX);
        Some(Self::Output { stream: *stream, offset: *offset + FRAME_BYTES_MAX as u64, data: rest })
    }
}

impl Cut for ClientFrame {
    fn cut(&mut self) -> Option<Self> {
        let Self::Stdin(data) = self else { return None };
        (data.len() > FRAME_BYTES_MAX).then(|| Self::Stdin(data.split_off(FRAME_BYTES_MAX)))
    }
}

/// Bytes that wait for one vectored write.
#[derive(Default)]
struct Batch {
    queue: VecDeque<Bytes>,
    scratch: BytesMut,
}

impl Batch {
    fn push<F: Cut>(&mut self, mut frame: F) {
        loop {
            let rest = frame.cut();
            let data = frame.encode_head(&mut self.scratch);
            if data.len() <= INLINE_BYTES {
                self.scratch.extend_from_slice(&data);
            } else {
                self.seal();
                self.queue.push_back(data);
            }
            match rest {
                Some(rest) => frame = rest,
                None => return,
            }
        }
    }

    fn seal(&mut self) {
        if !self.scratch.is_empty() {
            self.queue.push_back(self.scratch.split().freeze());
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.queue.iter().map(Bytes::len).sum()
    }
    fn chunk(&self) -> &[u8] {
        self.queue.front().map_or(&[], |b| b)
    }
    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, bytes) in slices.iter_mut().zip(&self.queue) {
            *slice = IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }
    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(front) = self.queue.front_mut() else { return };
            let step = count.min(front.len());
            front.advance(step);
            count -= step;
            if front.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

/// Writes frames to one half of a connection.
pub(crate) struct FrameWriter<W> {
    io: W,
    batch: Batch,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(crate) fn new(io: W) -> Self {
        Self { io, batch: Batch::default() }
    }

    /// Writes all of `frames`, which it empties.
    pub(crate) async fn write<F: Cut>(&mut self, frames: &mut Vec<F>) -> io::Result<()> {
        frames.drain(..).for_each(|frame| self.batch.push(frame));
        self.batch.seal();
        self.io.write_all_buf(&mut self.batch).await?;
        self.io.flush().await
    }

    /// Writes what comes until the channel closes, or `closing` comes: then what is queued, and no more.
    #[cfg(feature = "call")]
    pub(crate) async fn pump<F: Cut>(
        &mut self,
        frames: &mut mpsc::Receiver<F>,
        closing: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let mut closing = std::pin::pin!(closing);
        let (mut batch, mut closed) = (Vec::new(), false);
        loop {
            let count = tokio::select! {
                count = frames.recv_many(&mut batch, api::arrow::FRAMES_IN_FLIGHT) => count,
                () = &mut closing, if !closed => {
                    closed = true;
                    frames.close();
                    continue;
                }
            };
            if count == 0 {
                return Ok(());
            }
            self.write(&mut batch).await?;
        }
    }

    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }
}

/// Why reading stopped.
pub(crate) enum ReadEnd {
    /// The peer closed, or the connection broke.
    Closed,
    /// The peer broke the protocol.
    #[cfg_attr(not(feature = "call"), allow(dead_code))]
    Bad(api::Error),
}

/// Reads frames from one half of a connection.
pub(crate) struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::new() }
    }

    /// The next frame. Safe to drop half-way: nothing that was read is lost.
    pub(crate) async fn next<F: Frame>(&mut self) -> Result<F, ReadEnd> {
        loop {
            match F::decode(&mut self.buffer) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(e) => return Err(ReadEnd::Bad(e)),
            }
            self.buffer.reserve(self.missing().max(READ_BYTES));
            match self.io.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(ReadEnd::Closed),
                Ok(_) => {}
            }
        }
    }

    #[cfg(feature = "serve")]
    pub(crate) fn io_mut(&mut self) -> &mut R {
        &mut self.io
    }

    /// Bytes that the announced frame still needs. `decode` has checked that it is within the limit.
    fn missing(&self) -> usize {
        let Some(head) = self.buffer.get(..HEAD_BYTES) else { return 0 };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        (HEAD_BYTES + length).saturating_sub(self.buffer.len())
    }
}

/// Reads client frames into `input` until the peer closes. When nobody takes input any more, what comes is thrown
/// away: the end of the connection must still be seen.
#[cfg(feature = "serve")]
pub(crate) async fn pump_in<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    input: mpsc::Sender<ClientFrame>,
) {
    let mut input = Some(input);
    loop {
        match reader.next::<ClientFrame>().await {
            Ok(frame) => {
                if let Some(to) = &input
                    && to.send(frame).await.is_err()
                {
                    input = None;
                }
            }
            Err(ReadEnd::Bad(e)) => {
                tracing::debug!(error = %e, "a client broke the framing; detached");
                return;
            }
            Err(ReadEnd::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::frame::Stream;
    use proptest::prelude::*;

    fn arb_frame() -> impl Strategy<Value = ServerFrame> {
        prop_oneof![
            (any::<u32>(), 0usize..600_000).prop_map(|(offset, len)| ServerFrame::Output {
                stream: if offset % 2 == 0 { Stream::Stdout } else { Stream::Stderr },
                offset: offset.into(),
                data: Bytes::from((0..len).map(|i| (i % 251) as u8).collect::<Vec<_>>()),
            }),
            Just(ServerFrame::Alive),
            (any::<u64>(), any::<u64>()).prop_map(|(offset, bytes)| ServerFrame::Dropped {
                stream: Stream::Stdout,
                offset,
                bytes
            }),
        ]
    }

    /// What the reader must see: the frames, with the long ones cut.
    fn cut_all(frames: &[ServerFrame]) -> Vec<ServerFrame> {
        let mut out = Vec::new();
        for frame in frames {
            let mut frame = frame.clone();
            while let Some(rest) = frame.cut() {
                out.push(std::mem::replace(&mut frame, rest));
            }
            out.push(frame);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn frames_cross_a_real_socket_in_any_split(
            frames in proptest::collection::vec(arb_frame(), 1..8),
            splits in proptest::collection::vec(1usize..5000, 1..50),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let want = cut_all(&frames);
            let got = runtime.block_on(async move {
                let (a, b) = tokio::net::UnixStream::pair().unwrap();
                // A middle man cuts the bytes where no frame ends.
                let (mut from, to) = tokio::io::duplex(1 << 20);
                let mut a = a;
                let middle = async move {
                    let mut splits = splits.into_iter().cycle();
                    let mut buffer = vec![0; 5000];
                    loop {
                        let n = splits.next().unwrap();
                        let n = from.read(&mut buffer[..n]).await.unwrap();
                        if n == 0 { break; }
                        a.write_all(&buffer[..n]).await.unwrap();
                    }
                };
                let write = async move {
                    let mut writer = FrameWriter::new(to);
                    let mut frames = frames;
                    writer.write(&mut frames).await.unwrap();
                };
                let read = async move {
                    let mut reader = FrameReader::new(b);
                    let mut got = Vec::new();
                    while let Ok(frame) = reader.next::<ServerFrame>().await {
                        got.push(frame);
                    }
                    got
                };
                tokio::join!(middle, write, read).2
            });
            prop_assert_eq!(got, want);
        }

        #[test]
        fn garbage_on_a_socket_ends_the_reader_and_stays_small(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut reader = FrameReader::new(&bytes[..]);
                while reader.next::<ClientFrame>().await.is_ok() {}
                prop_assert!(reader.buffer.capacity() < 1 << 20);
                Ok(())
            })?;
        }
    }
}
