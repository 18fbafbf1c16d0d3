//! Answers: JSON, lines, bytes, errors, upgrades.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use api::{Code, Error, RequestId, Result, arrow::ByteStream, error::Class};
use axum::{body::Body, response::Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use crate::request;

/// Between two signs of life on a silent stream.
pub(crate) const ALIVE_PERIOD: Duration = Duration::from_secs(15);

/// An error, with the status where that is not its code's.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    error: Error,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, error }
    }
}

impl Fault {
    pub(crate) fn with_status(status: StatusCode, error: Error) -> Self {
        Self { status, error }
    }

    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let error = Error::new(Code::InvalidArgument, format!("body: over {bytes_max} bytes"));
        Self::with_status(StatusCode::PAYLOAD_TOO_LARGE, error)
    }

    pub(crate) fn into_response(self, id: &RequestId) -> Response {
        let mut error = self.error;
        error.request_id = Some(id.clone());
        let mut response = json(&error);
        *response.status_mut() = self.status;
        if error.code.class() == Class::Busy {
            let seconds = error.retry_after_ms.unwrap_or(1000).div_ceil(1000).max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        stamp(&mut response, id);
        response
    }
}

/// Puts the request's id on an answer.
pub(crate) fn stamp(response: &mut Response, id: &RequestId) {
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(HeaderName::from_static(request::HEADER), value);
    }
}

fn with_type(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => with_type("application/json", Body::from(bytes)),
        Err(e) => {
            tracing::error!(error = %e, "an answer could not be written as JSON");
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}

/// Done, and nothing to tell.
pub(crate) fn nothing() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Bytes as they come. A stream that fails before its first byte is an error with its status; a later error breaks the
/// connection, so that the reader cannot take a part for all.
pub(crate) async fn bytes(content_type: &'static str, body: ByteStream) -> Result<Response> {
    let mut body = Box::pin(guarded(body));
    let first = body.next().await.transpose()?;
    let whole = stream::iter(first.map(Ok)).chain(body);
    Ok(with_type(content_type, Body::from_stream(whole)))
}

/// A stream whose panic is an error and its end, as a handler's is.
fn guarded<T>(
    items: impl Stream<Item = Result<T>> + Send + 'static,
) -> impl Stream<Item = Result<T>> + Send + 'static {
    AssertUnwindSafe(items).catch_unwind().map(|item| {
        item.unwrap_or_else(|_| {
            tracing::error!("a stream panicked");
            Err(Error::internal("DSec failed on this request; its log has the request id"))
        })
    })
}

/// One JSON object a line, as they come. An error is the line `{"error": ...}` and the last one.
pub(crate) fn lines<T: Serialize + 'static>(
    items: impl Stream<Item = Result<T>> + Send + 'static,
) -> Response {
    let lines = Lines {
        items: Box::pin(guarded(items)),
        alive: Box::pin(tokio::time::sleep(ALIVE_PERIOD)),
        ended: false,
    };
    with_type("application/x-ndjson", Body::from_stream(lines))
}

struct Lines<S> {
    items: Pin<Box<S>>,
    alive: Pin<Box<Sleep>>,
    ended: bool,
}

fn line<T: Serialize>(value: &T) -> Bytes {
    let mut out = BytesMut::new().writer();
    if let Err(e) = serde_json::to_writer(&mut out, value) {
        tracing::error!(error = %e, "a line could not be written as JSON");
        return Bytes::from_static(b"\n");
    }
    let mut out = out.into_inner();
    out.put_u8(b'\n');
    out.freeze()
}

impl<T: Serialize, S: Stream<Item = Result<T>>> Stream for Lines<S> {
    type Item = Result<Bytes>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let bytes = match self.items.as_mut().poll_next(cx) {
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Ok(item))) => line(&item),
            Poll::Ready(Some(Err(error))) => {
                self.ended = true;
                line(&serde_json::json!({ "error": error }))
            }
            Poll::Pending => {
                if self.alive.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Bytes::from_static(b"\n")
            }
        };
        self.alive.as_mut().reset(Instant::now() + ALIVE_PERIOD);
        Poll::Ready(Some(Ok(bytes)))
    }
}

/// `101`: `relay` gets the connection when the answer is out.
pub(crate) fn switch<F>(
    upgrade: OnUpgrade,
    protocol: &'static str,
    relay: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let work = async move {
        match upgrade.await {
            Ok(upgraded) => relay(TokioIo::new(upgraded)).await,
            Err(e) => tracing::debug!(error = %e, "a client left before its upgrade"),
        }
    };
    tokio::spawn(work.in_current_span());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
    response
}
