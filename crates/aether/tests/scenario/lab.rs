//! What every scenario needs: a service, and a client that collects.

use std::time::Duration;

use aether::{Service, inside::Inside};
use api::{
    Code, Error,
    arrow::{ByteStream, Chronus, ExecStream},
    exec::{ExecRequest, Exit, ExitReason},
    file::{ReadQuery, WriteQuery},
    frame::{ClientFrame, ServerFrame, Stream},
};
use bytes::Bytes;

pub struct Lab {
    pub service: Service,
}

/// What a client collected.
#[derive(Debug, Default)]
pub struct Out {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Option<Exit>,
    pub dropped: u64,
}

impl Out {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
    pub fn code(&self) -> i32 {
        self.exit.expect("an exit").code
    }
    pub fn reason(&self) -> ExitReason {
        self.exit.expect("an exit").reason
    }
}

/// Takes one frame in, acknowledging as the edge does. True: it was the last.
pub async fn take(stream: &mut ExecStream, out: &mut Out) -> bool {
    let frame = stream.output.recv().await.expect("a frame before the end");
    match frame {
        ServerFrame::Output { stream: which, offset, data } => {
            let log = if which == Stream::Stdout { &mut out.stdout } else { &mut out.stderr };
            assert_eq!(offset, log.len() as u64 + out.dropped, "no gap, no overlap");
            log.extend_from_slice(&data);
            let ack = ClientFrame::Ack { stdout: out.stdout.len() as u64, stderr: out.stderr.len() as u64 };
            // A client that has dropped its input does not acknowledge.
            let _ = stream.input.try_send(ack);
            false
        }
        ServerFrame::Dropped { bytes, .. } => {
            out.dropped += bytes;
            false
        }
        ServerFrame::Exit(exit) => {
            out.exit = Some(exit);
            true
        }
        ServerFrame::Started(_) | ServerFrame::Alive => false,
        ServerFrame::Error(e) => panic!("error frame: {e}"),
    }
}

pub async fn collect(mut stream: ExecStream) -> Out {
    let mut out = Out::default();
    while !take(&mut stream, &mut out).await {}
    out
}

/// Collects until the output holds `text`.
pub async fn until(stream: &mut ExecStream, out: &mut Out, text: &str) {
    while !out.text().contains(text) {
        assert!(!take(stream, out).await, "ended before `{text}`: {out:?}");
    }
}

impl Lab {
    pub fn new(inside: Inside) -> Self {
        Self { service: Service::new(inside) }
    }
    pub async fn run(&self, request: ExecRequest) -> Out {
        collect(self.service.exec(request).await.expect("started")).await
    }
    pub async fn sh(&self, text: &str) -> Out {
        self.run(ExecRequest::shell(text)).await
    }
    /// The output of a command that must succeed.
    pub async fn ok(&self, text: &str) -> String {
        let out = self.sh(text).await;
        assert_eq!(out.code(), 0, "{text}: {out:?}");
        out.text()
    }
    pub async fn as_user(&self, user: &str, text: &str) -> Out {
        self.run(ExecRequest { user: Some(user.into()), ..ExecRequest::shell(text) }).await
    }
    pub async fn write(
        &self,
        path: &str,
        user: Option<&str>,
        data: &[u8],
    ) -> Result<api::file::FileInfo, Error> {
        let query = WriteQuery { user: user.map(str::to_owned), ..WriteQuery::new(path) };
        self.service.file_write(query, body(data)).await
    }
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        gather(self.service.file_read(ReadQuery::new(path)).await?.body).await
    }
    pub async fn sleep(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// A body in uneven pieces.
pub fn body(data: &[u8]) -> ByteStream {
    let pieces: Vec<Result<Bytes, Error>> =
        data.chunks(70_001).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
    stream(pieces)
}

pub fn stream(pieces: Vec<Result<Bytes, Error>>) -> ByteStream {
    struct Pieces(std::vec::IntoIter<Result<Bytes, Error>>);
    impl futures_core::Stream for Pieces {
        type Item = Result<Bytes, Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Box::pin(Pieces(pieces.into_iter()))
}

pub async fn gather(mut body: ByteStream) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    while let Some(chunk) = std::future::poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        data.extend_from_slice(&chunk?);
    }
    Ok(data)
}

/// The error and that its message names `part`.
pub fn assert_error<T>(result: Result<T, Error>, code: Code, part: &str) {
    let error = result.err().expect("an error");
    assert_eq!(error.code, code, "{error}");
    assert!(error.message.contains(part), "{error}");
}
