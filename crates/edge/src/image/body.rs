//! From a stream of bytes to a blocking reader, over a bounded channel.
//!
//! Only a body that was told to be whole reads as ended: one that was cut short is an error, so that half an archive
//! never becomes an image.

use std::io::{self, Read};

use api::arrow::ByteStream;
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use tokio::sync::mpsc;

/// Parts of the body in flight.
const PARTS_IN_FLIGHT: usize = 8;

enum Part {
    Bytes(Bytes),
    End,
    Failed(api::Error),
}

pub(crate) struct Feeder {
    parts: mpsc::Sender<Part>,
}

pub(crate) struct BodyReader {
    parts: mpsc::Receiver<Part>,
    rest: Bytes,
    ended: bool,
}

pub(crate) fn bridge() -> (Feeder, BodyReader) {
    let (sender, receiver) = mpsc::channel(PARTS_IN_FLIGHT);
    (Feeder { parts: sender }, BodyReader { parts: receiver, rest: Bytes::new(), ended: false })
}

impl Feeder {
    /// Feeds the body to its reader, until either ends.
    pub(crate) async fn feed(self, mut body: ByteStream) {
        loop {
            let (part, last) = match body.next().await {
                Some(Ok(bytes)) => (Part::Bytes(bytes), false),
                Some(Err(error)) => (Part::Failed(error), true),
                None => (Part::End, true),
            };
            if self.parts.send(part).await.is_err() || last {
                return;
            }
        }
    }
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.ended && !buffer.is_empty() {
            match self.parts.blocking_recv() {
                Some(Part::Bytes(bytes)) => self.rest = bytes,
                Some(Part::End) => self.ended = true,
                Some(Part::Failed(error)) => return Err(io::Error::other(error)),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload was cut short")),
            }
        }
        let count = self.rest.len().min(buffer.len());
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read_all(parts: Vec<api::Result<Bytes>>) -> io::Result<Vec<u8>> {
        let (feeder, mut reader) = bridge();
        let read = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        feeder.feed(Box::pin(stream::iter(parts))).await;
        read.await.unwrap()
    }

    #[tokio::test]
    async fn a_whole_body_is_read_and_a_failed_one_is_an_error() {
        let part = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        assert_eq!(read_all(vec![part("ab"), part(""), part("c")]).await.unwrap(), b"abc");
        assert!(read_all(vec![part("ab"), Err(api::Error::internal("x"))]).await.is_err());
    }

    #[tokio::test]
    async fn a_body_that_is_cut_short_is_an_error() {
        let (feeder, mut reader) = bridge();
        feeder.parts.send(Part::Bytes(Bytes::from_static(b"half"))).await.unwrap();
        drop(feeder);
        let read = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            (reader.read_to_end(&mut all).map_err(|e| e.kind()), all)
        });
        assert_eq!(read.await.unwrap(), (Err(io::ErrorKind::UnexpectedEof), b"half".to_vec()));
    }
}
