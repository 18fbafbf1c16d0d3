//! One request as a handler sees it: parameters, query, JSON body, stream, upgrade. Whatever is wrong with it is an
//! `invalid_argument` that names the field.

use std::{str::FromStr, time::Duration};

use api::{Code, Error, Result, arrow::ByteStream, limit};
use axum::{
    body::Body,
    extract::{FromRequestParts, RawPathParams},
};
use futures_util::{StreamExt, stream};
use http::{Request, header, request::Parts};
use hyper::upgrade::OnUpgrade;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use super::{
    answer::Fault,
    listen::Stopping,
    query,
    whole::{BodyFault, whole_body},
};
use crate::request;

/// The longest pause in a streamed body.
const STREAM_PAUSE_MAX: Duration = Duration::from_secs(300);

pub(crate) struct Call {
    pub(crate) parts: Parts,
    pub(crate) body: Body,
    params: Vec<(String, String)>,
}

/// What of an unwanted body is still read.
const DRAIN_BYTES_MAX: usize = 1 << 30;
const DRAIN_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(10);

impl Call {
    pub(crate) async fn new(request: Request<Body>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let params = RawPathParams::from_request_parts(&mut parts, &())
            .await
            .map_err(|_| Error::invalid("path: its percent-encoding is not UTF-8"))?;
        let params = params.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Ok(Self { parts, body, params })
    }

    /// What the layers before have left.
    pub(crate) fn extensions(&self) -> &http::Extensions {
        &self.parts.extensions
    }
    /// A part of the path, decoded.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A part of the path, parsed.
    pub(crate) fn param<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T> {
        let text = self.text(name).unwrap_or_default();
        text.parse().map_err(|e| Error::invalid(format!("{name}: {e}")))
    }

    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T> {
        query::parse(self.parts.uri.query().unwrap_or_default())
    }

    /// The body as JSON, within the limit.
    pub(crate) async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let claimed =
            self.parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if claimed.is_some_and(|bytes| bytes > limit::REQUEST_BODY_BYTES_MAX as u64) {
            return Err(Fault::too_large(limit::REQUEST_BODY_BYTES_MAX));
        }
        match whole_body(std::mem::take(&mut self.body)).await {
            Ok(bytes) => Ok(from_json(&bytes)?),
            Err(BodyFault::TooLarge) => Err(Fault::too_large(limit::REQUEST_BODY_BYTES_MAX)),
            Err(fault) => Err(Error::from(fault).into()),
        }
    }

    /// The body as it comes. Dropped early, the rest is read and thrown away, within bounds: an answer that comes
    /// while the client still sends would else be lost with the connection.
    pub(crate) fn stream(self) -> ByteStream {
        byte_stream(self.body)
    }

    /// Some where the client asks to switch to `protocol`. Errors: where it asks for another.
    pub(crate) fn upgrade(&mut self, protocol: &str) -> Result<Option<OnUpgrade>> {
        let Some(asked) = self.parts.headers.get(header::UPGRADE) else { return Ok(None) };
        if !asked.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()) {
            return Err(Error::invalid(format!("Upgrade: this path knows `{protocol}`")));
        }
        let upgrade = self.parts.extensions.remove::<OnUpgrade>();
        upgrade.map(Some).ok_or_else(|| Error::invalid("Upgrade: needs `Connection: upgrade` and HTTP/1.1"))
    }

    /// As `upgrade`, where there is no other way.
    pub(crate) fn must_upgrade(&mut self, protocol: &str) -> Result<OnUpgrade> {
        self.upgrade(protocol)?
            .ok_or_else(|| Error::invalid(format!("Upgrade: this path needs `{protocol}`")))
    }

    /// Comes when the server stops.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        Stopping::of(&self.parts.extensions).wait()
    }
}

/// A body as it comes, with a bound on its pauses; see [`Call::stream`].
pub fn byte_stream(body: Body) -> ByteStream {
    let body = Draining(Some(body.into_data_stream()));
    Box::pin(stream::unfold(body, |mut body| async move {
        let item = match tokio::time::timeout(STREAM_PAUSE_MAX, body.0.as_mut()?.next()).await {
            Ok(Some(Ok(bytes))) => return Some((Ok(bytes), body)),
            Ok(None) => {
                // All was read: nothing to drain.
                drop(body.0.take());
                return None;
            }
            Ok(Some(Err(_))) => Error::invalid("body: broke off before its end"),
            Err(_) => Error::new(Code::DeadlineExceeded, "body: stopped for too long"),
        };
        drop(body.0.take());
        Some((Err(item), body))
    }))
}

fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| named("body", &e))?;
    json.end().map_err(|e| Error::invalid(format!("body: {e}")))?;
    Ok(value)
}

/// A parse error with the field's name before it.
pub(crate) fn named<E: std::fmt::Display>(whole: &str, error: &serde_path_to_error::Error<E>) -> Error {
    let path = error.path().to_string();
    // A hostile body must not come back whole.
    let message: String = error.inner().to_string().chars().take(500).collect();
    let path: String = if path == "." { whole.to_owned() } else { path.chars().take(200).collect() };
    Error::invalid(format!("{path}: {message}"))
}

/// Runs `work` to its end whether or not the client stays: what has begun to change the world is not left half-done.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let id = request::current().unwrap_or_else(api::RequestId::new);
    match tokio::spawn(request::scope(id, work).in_current_span()).await {
        Ok(result) => result,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::internal("DSec is shutting down")),
        },
    }
}

/// A body that is read to its end even when nobody wants it.
struct Draining(Option<axum::body::BodyDataStream>);

impl Drop for Draining {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(DRAIN_TIME_MAX, async move {
            let mut left = DRAIN_BYTES_MAX;
            while let Some(Ok(bytes)) = body.next().await {
                left = left.saturating_sub(bytes.len());
                if left == 0 {
                    return;
                }
            }
        }));
    }
}
