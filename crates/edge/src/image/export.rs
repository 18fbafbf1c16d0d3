//! export: the catalogue writes on a thread that may block; its bytes come out as a stream, over a bounded channel.
//!
//! Invariants: a writer whose reader has gone is told so at its next write or flush, and ends; a stream whose writer
//! ended without a word (a panic) ends with an error, so that nobody takes a part for all.

use std::io::{self, Write};

use api::{Error, Result, arrow::ByteStream, image::ExportQuery};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::sync::mpsc;

use crate::node::EdgeNode;

const PART_BYTES: usize = 256 << 10;
/// Parts between writer and reader: with `PART_BYTES` the memory of one export.
const PARTS_IN_FLIGHT: usize = 4;

enum Part {
    Bytes(Bytes),
    Failed(Error),
    End,
}

impl EdgeNode {
    pub(super) async fn export(&self, reference: String, query: ExportQuery) -> Result<ByteStream> {
        self.parts.check_open()?;
        let job = self.job()?;
        let export = self.ask(move |layers| layers.export(&reference, query)).await?;
        let (sender, receiver) = mpsc::channel(PARTS_IN_FLIGHT);
        tokio::task::spawn_blocking(move || {
            let mut outlet = Outlet { parts: sender, gathered: BytesMut::new() };
            let written = export(&mut outlet).and_then(|()| outlet.flush().map_err(|_| gone()));
            let last = written.map_or_else(Part::Failed, |()| Part::End);
            // Where nobody reads any more, nobody is to be told.
            let _ = outlet.parts.blocking_send(last);
            drop(job);
        });
        Ok(stream_of(receiver))
    }
}

fn gone() -> Error {
    Error::internal("the export has no reader")
}

fn stream_of(receiver: mpsc::Receiver<Part>) -> ByteStream {
    Box::pin(stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Part::Bytes(bytes)) => Some((Ok(bytes), Some(receiver))),
            Some(Part::End) => None,
            Some(Part::Failed(error)) => Some((Err(error), None)),
            None => Some((Err(Error::internal("the export failed")), None)),
        }
    }))
}

/// Gathers what is written into parts. Blocks while its reader is behind.
struct Outlet {
    parts: mpsc::Sender<Part>,
    gathered: BytesMut,
}

impl Outlet {
    fn send(&mut self) -> io::Result<()> {
        let part = Part::Bytes(self.gathered.split().freeze());
        self.parts.blocking_send(part).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(PART_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..n]);
        if self.gathered.len() == PART_BYTES {
            self.send()?;
        }
        Ok(n)
    }

    /// Also where there is nothing to send it tells whether anybody reads.
    fn flush(&mut self) -> io::Result<()> {
        match self.gathered.is_empty() {
            true if self.parts.is_closed() => Err(io::ErrorKind::BrokenPipe.into()),
            true => Ok(()),
            false => self.send(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    fn bridge() -> (Outlet, ByteStream) {
        let (sender, receiver) = mpsc::channel(PARTS_IN_FLIGHT);
        (Outlet { parts: sender, gathered: BytesMut::new() }, stream_of(receiver))
    }

    #[tokio::test]
    async fn all_that_is_written_comes_out_and_the_end_is_told() {
        let (mut outlet, stream) = bridge();
        let bytes: Vec<u8> = (0..3 * PART_BYTES + 7).map(|i| (i % 251) as u8).collect();
        let expected = bytes.clone();
        let writer = tokio::task::spawn_blocking(move || {
            outlet.write_all(&bytes).unwrap();
            outlet.flush().unwrap();
            outlet.parts.blocking_send(Part::End).ok();
        });
        let parts: Vec<Bytes> = stream.map(Result::unwrap).collect().await;
        writer.await.unwrap();
        assert!(parts.iter().all(|part| part.len() <= PART_BYTES));
        assert!(parts.concat() == expected);
    }

    #[tokio::test]
    async fn a_writer_that_ends_without_a_word_is_an_error() {
        let (outlet, mut stream) = bridge();
        drop(outlet);
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_reader_that_leaves_is_noticed() {
        let (mut outlet, stream) = bridge();
        outlet.flush().unwrap();
        drop(stream);
        assert_eq!(outlet.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let written = tokio::task::spawn_blocking(move || outlet.write_all(&vec![0; PART_BYTES]));
        assert!(written.await.unwrap().is_err());
    }
}
