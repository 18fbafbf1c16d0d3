//! Which HTTP a connection speaks, told by its first bytes: HTTP/2 begins with a fixed preface, HTTP/1 never does.
//!
//! The bytes read are given back before the rest, so the server that takes over sees them all.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::listen::Socket;

/// RFC 9113, 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) enum Begun {
    Http1(Rewound),
    Http2(Rewound),
}

/// Reads until it is clear. Bound its time: a client may say nothing for ever. Errors: the connection's.
pub(super) async fn begin(mut socket: Box<dyn Socket>) -> io::Result<Begun> {
    let mut first = BytesMut::with_capacity(PREFACE.len());
    while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
        let room = PREFACE.len() - first.len();
        if (&mut socket).take(room as u64).read_buf(&mut first).await? == 0 {
            break;
        }
    }
    let is_http2 = first == PREFACE;
    let rewound = Rewound { first: first.freeze(), socket };
    Ok(if is_http2 { Begun::Http2(rewound) } else { Begun::Http1(rewound) })
}

/// A socket with some bytes before its own.
pub(super) struct Rewound {
    first: Bytes,
    socket: Box<dyn Socket>,
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, out);
        }
        let count = self.first.len().min(out.remaining());
        out.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn told(bytes: &'static [u8]) -> (bool, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(64);
        let writing = tokio::spawn(async move {
            // A byte at a time: the worst split.
            for byte in bytes {
                client.write_all(&[*byte]).await.unwrap();
            }
        });
        let (is_http2, mut rewound) = match begin(Box::new(server)).await.unwrap() {
            Begun::Http1(rewound) => (false, rewound),
            Begun::Http2(rewound) => (true, rewound),
        };
        let mut seen = Vec::new();
        rewound.read_to_end(&mut seen).await.unwrap();
        writing.await.unwrap();
        (is_http2, seen)
    }

    #[tokio::test]
    async fn the_preface_alone_is_http2_and_no_byte_is_lost() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand frames";
        assert_eq!(told(preface).await, (true, preface.to_vec()));
        for other in [&b"POST /v1/sandboxes HTTP/1.1\r\n"[..], b"PRI * HTTP/1.1\r\n\r\n", b"P", b""] {
            assert_eq!(told(other).await, (false, other.to_vec()));
        }
    }
}
