//! Bodies of requests and answers.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use api::{Error, Result, arrow::ByteStream};
use bytes::Bytes;
use futures_core::Stream;
use futures_util::TryStreamExt;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::origin::{Origin, Sender};

pub(super) type Body = UnsyncBoxBody<Bytes, Error>;

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn stream(bytes: ByteStream) -> Body {
    StreamBody::new(bytes.map_ok(Frame::data)).boxed_unsync()
}

/// The body of an answer. Read to its end, it gives its connection back; dropped before, it closes it.
pub(super) struct Answer {
    body: Incoming,
    sender: Option<Sender>,
    origin: Origin,
}

impl Answer {
    pub(super) fn new(body: Incoming, sender: Sender, origin: Origin) -> Self {
        Self { body, sender: Some(sender), origin }
    }

    /// As a stream of bytes.
    pub(super) fn bytes(self) -> ByteStream {
        Box::pin(Chunks(self))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(Err(e)) => {
                self.sender = None;
                Poll::Ready(Some(Err(self.origin.lost(&e))))
            }
            None => {
                if let Some(sender) = self.sender.take() {
                    self.origin.put_idle(sender);
                }
                Poll::Ready(None)
            }
        }
    }
}

struct Chunks(Answer);

impl Stream for Chunks {
    type Item = Result<Bytes>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let frame = ready!(http_body::Body::poll_frame(Pin::new(&mut self.0), cx));
            return Poll::Ready(match frame {
                None => None,
                Some(Err(e)) => Some(Err(e)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => Some(Ok(bytes)),
                    // Trailers are no data.
                    Err(_) => continue,
                },
            });
        }
    }
}

/// The longest line: one sandbox with all its labels and environment.
const LINE_BYTES_MAX: usize = 16 << 20;

/// One JSON object a line. Ends with the stream's error, where it has one.
pub(super) struct Lines {
    bytes: ByteStream,
    buffer: bytes::BytesMut,
}

impl Lines {
    pub(super) fn new(answer: Answer) -> Self {
        Self { bytes: answer.bytes(), buffer: bytes::BytesMut::new() }
    }

    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Option<Result<T>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(searched + at + 1);
                searched = 0;
                if line.len() > 1 {
                    return Some(parse(&line));
                }
                continue;
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Some(Err(Error::internal("the server sent an endless line")));
            }
            match futures_util::StreamExt::next(&mut self.bytes).await? {
                Ok(bytes) => self.buffer.extend_from_slice(&bytes),
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line<T> {
    Item(T),
    Failed { error: Error },
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    match serde_json::from_slice(line) {
        Ok(Line::Item(item)) => Ok(item),
        Ok(Line::Failed { error }) => Err(error),
        Err(e) => {
            tracing::warn!(error = %e, "a line was not what was asked for");
            Err(Error::internal("the server sent a line that this client does not know"))
        }
    }
}
