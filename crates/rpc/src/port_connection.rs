//! A [`PortStream`] as a socket: what the SDK gives its callers, and what the HTTP proxy speaks over.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use api::{Result, arrow::PortStream};
use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};
use tokio_util::sync::PollSender;

/// What one write hands on: a channel's place is bounded in bytes too.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Raw bytes both ways; an [`AsyncRead`] and an [`AsyncWrite`]. `shutdown` half-closes, dropping closes.
pub struct PortConnection {
    input: PollSender<Bytes>,
    output: mpsc::Receiver<Result<Bytes>>,
    /// Read, not yet asked for.
    rest: Bytes,
}

impl From<PortStream> for PortConnection {
    fn from(stream: PortStream) -> Self {
        Self { input: PollSender::new(stream.input), output: stream.output, rest: Bytes::new() }
    }
}

impl AsyncRead for PortConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.output.poll_recv(cx)) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(e)) => return Poll::Ready(Err(io::Error::other(e))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let size = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..size]);
        self.rest.advance(size);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.input.poll_reserve(cx)).map_err(broken)?;
        let data = &data[..data.len().min(WRITE_BYTES_MAX)];
        self.input.send_item(Bytes::copy_from_slice(data)).map_err(broken)?;
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.close();
        Poll::Ready(Ok(()))
    }
}
