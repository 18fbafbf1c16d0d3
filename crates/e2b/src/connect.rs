//! The Connect protocol with JSON, the server's half: unary calls, streams of envelopes, deadlines.
//!
//! ```text
//! envelope: [flags: u8][length: u32, big-endian][JSON]     flags: 1 compressed, 2 end of the stream
//! ```
//! Readers treat bytes as hostile: a length over the limit ends the stream before its bytes are kept.

use std::{sync::Arc, time::Duration};

use api::limit;
use axum::{
    body::{Body, BodyDataStream},
    response::Response,
};
use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tracing::Instrument;

use crate::{body, fault::Fault};

const HEADER_BYTES: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";
/// Messages on their way to a client.
const MESSAGES_IN_FLIGHT: usize = 8;
/// The longest pause within a stream of requests.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Between two signs of life on a stream, unless the client names a period.
const PING_DEFAULT: Duration = Duration::from_secs(90);
const PING_RANGE_S: std::ops::RangeInclusive<u64> = 1..=300;
/// Of a deadline: ten digits of milliseconds, by the protocol.
const TIMEOUT_DIGITS_MAX: usize = 10;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const DECODER: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// Bytes in JSON, as protobuf reads them: base64 of either alphabet, padded or not.
pub(crate) fn base64_bytes<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
    let Some(text) = Option::<String>::deserialize(d)? else { return Ok(None) };
    let standard = text.replace('-', "+").replace('_', "/");
    DECODER.decode(standard).map(|bytes| Some(bytes.into())).map_err(serde::de::Error::custom)
}

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn must_be(expected: &'static str, headers: &HeaderMap) -> Result<(), Fault> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media = given.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let message = format!("Content-Type: this call takes {expected}");
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_argument", message))
}

fn must_be_plain(headers: &HeaderMap, name: &str) -> Result<(), Fault> {
    match headers.get(name).map(HeaderValue::as_bytes) {
        None | Some(b"identity" | b"") => Ok(()),
        Some(_) => {
            Err(Fault::unsupported(format!("{name}: compressed messages are not taken; send `identity`")))
        }
    }
}

/// The message of a unary call.
pub(crate) async fn unary<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Fault> {
    must_be(UNARY, headers)?;
    must_be_plain(headers, "content-encoding")?;
    body::parse(&body::whole(body).await?)
}

/// The one message of a call that answers by a stream.
pub(crate) async fn single<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Fault> {
    let mut messages = Messages::new(headers, body)?;
    let first = messages.next().await?.ok_or_else(|| Fault::invalid("body: no message came"));
    // The end of the stream may still be on its way. Closing the connection on unread bytes would reset it, and could take the
    // end of a long answer with it.
    tokio::spawn(tokio::time::timeout(DRAIN_TIME_MAX, messages.drain()));
    first
}

/// The answer of a unary call.
pub(crate) fn answer(value: &impl Serialize) -> Response {
    body::json(StatusCode::OK, value)
}

/// For the end of a stream whose one message has come.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);

/// The messages of a client's stream.
pub(crate) struct Messages {
    body: BodyDataStream,
    buffer: BytesMut,
}

impl Messages {
    pub(crate) fn new(headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        must_be(STREAM, headers)?;
        must_be_plain(headers, "connect-content-encoding")?;
        Ok(Self { body: body.into_data_stream(), buffer: BytesMut::new() })
    }

    /// Reads what is left, within bounds, and keeps nothing.
    async fn drain(mut self) {
        let mut left = limit::REQUEST_BODY_BYTES_MAX;
        while let Some(Ok(chunk)) = self.body.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                return;
            }
        }
    }

    /// The next one; None at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        loop {
            if let Some((flags, message)) = take_envelope(&mut self.buffer)? {
                if flags & END != 0 {
                    return Ok(None);
                }
                return body::parse(&message).map(Some);
            }
            let chunk = tokio::time::timeout(PAUSE_MAX, self.body.next())
                .await
                .map_err(|_| Fault::late("body: stopped for too long"))?;
            match chunk {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(_)) => return Err(Fault::invalid("body: broke off before its end")),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::invalid("body: ends within a message")),
            }
        }
    }
}

fn take_envelope(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Fault> {
    let Some(head) = buffer.get(..HEADER_BYTES) else { return Ok(None) };
    let flags = head[0];
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if flags & COMPRESSED != 0 {
        return Err(Fault::unsupported("body: compressed messages are not taken"));
    }
    if length > limit::REQUEST_BODY_BYTES_MAX {
        return Err(Fault::invalid(format!(
            "body: a message of {length} bytes, at most {}",
            limit::REQUEST_BODY_BYTES_MAX
        )));
    }
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

fn envelope(flags: u8, value: &impl Serialize) -> Bytes {
    // Plain data with string keys: serialising it cannot fail.
    let json = serde_json::to_vec(value).unwrap_or_default();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + json.len());
    out.put_u8(flags);
    out.put_u32(json.len() as u32);
    out.put_slice(&json);
    out.freeze()
}

/// The client has left.
#[derive(Debug)]
pub(crate) struct Left;

/// Where the messages of an answer go.
pub(crate) struct Sink(mpsc::Sender<Bytes>);

impl Sink {
    /// Waits while the client is slow.
    pub(crate) async fn send(&self, value: &Value) -> Result<(), Left> {
        self.0.send(envelope(0, value)).await.map_err(|_| Left)
    }
    /// Comes when the client has left.
    pub(crate) async fn left(&self) {
        self.0.closed().await;
    }
    async fn end(self, fault: Option<Fault>) {
        let value = fault.map_or_else(|| json!({}), |fault| json!({ "error": fault.in_stream() }));
        // A client that has left needs no end.
        let _ = self.0.send(envelope(END, &value)).await;
    }
}

/// How a stream ended that its client has seen to the end, or not.
pub(crate) type Ended = Result<Result<(), Fault>, Left>;

/// An answer that is written by `work` as it goes; its fault is the last message. `work` ends when the client leaves,
/// or the server does.
pub(crate) fn stream<F>(stopping: rpc::Stopping, work: impl FnOnce(Arc<Sink>) -> F) -> Response
where
    F: Future<Output = Ended> + Send + 'static,
{
    let (sender, messages) = mpsc::channel(MESSAGES_IN_FLIGHT);
    let last = Sink(sender.clone());
    let sink = Arc::new(Sink(sender));
    let work = work(sink);
    let task = async move {
        let ended = tokio::select! {
            ended = work => ended,
            () = last.left() => Err(Left),
            () = stopping.wait() => Ok(Err(Fault::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "DSec is going down; commands go on, connect to them again",
            ))),
        };
        if let Ok(ended) = ended {
            last.end(ended.err()).await;
        }
    };
    tokio::spawn(task.in_current_span());
    respond(messages)
}

fn respond(messages: mpsc::Receiver<Bytes>) -> Response {
    let body = stream::unfold(messages, |mut messages| async move {
        let message = messages.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(message), messages))
    });
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAM));
    response
}

/// The answer of a call that takes a stream and answers once.
pub(crate) fn answer_in_stream(value: &Value) -> Response {
    let mut body = BytesMut::from(&envelope(0, value)[..]);
    body.extend_from_slice(&envelope(END, &json!({})));
    with_stream_type(body.freeze())
}

/// A fault of a streaming call, before its first message.
pub(crate) fn fault_in_stream(fault: Fault) -> Response {
    if fault.status() == StatusCode::BAD_GATEWAY {
        return fault.connect();
    }
    with_stream_type(envelope(END, &json!({ "error": fault.in_stream() })))
}

fn with_stream_type(body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAM));
    response
}

/// How long the client gives the call. None: as long as it takes.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let ms = (text.len() <= TIMEOUT_DIGITS_MAX).then(|| text.parse::<u64>().ok()).flatten();
    match ms {
        Some(0) => Ok(None),
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Err(Fault::invalid("Connect-Timeout-Ms: expected at most ten digits")),
    }
}

/// When [`timeout`] runs out.
pub(crate) fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Fault> {
    Ok(timeout(headers)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// Comes at `deadline`.
pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Between two signs of life on a stream.
pub(crate) fn ping_period(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    asked.map_or(PING_DEFAULT, |s| Duration::from_secs(s.clamp(*PING_RANGE_S.start(), *PING_RANGE_S.end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v))).collect()
    }

    fn never() -> rpc::Stopping {
        rpc::Stopping::of(&http::Extensions::new())
    }

    async fn read(response: Response) -> Vec<(u8, Value)> {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let mut buffer = BytesMut::from(&bytes[..]);
        let mut seen = Vec::new();
        while let Some((flags, message)) = take_envelope(&mut buffer).unwrap() {
            seen.push((flags, serde_json::from_slice(&message).unwrap()));
        }
        assert!(buffer.is_empty());
        seen
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_fault_or_with_none() {
        let good = stream(never(), |sink| async move {
            sink.send(&json!({ "n": 1 })).await?;
            Ok(Ok(()))
        });
        assert_eq!(read(good).await, [(0, json!({ "n": 1 })), (2, json!({}))]);
        let bad = stream(never(), |_| async { Ok(Err(Fault::not_found("gone"))) });
        assert_eq!(read(bad).await, [(2, json!({ "error": { "code": "not_found", "message": "gone" } }))]);
        assert_eq!(read(answer_in_stream(&json!({}))).await, [(0, json!({})), (2, json!({}))]);
    }

    #[tokio::test]
    async fn work_ends_when_its_client_has_left() {
        let (told, mut hears) = mpsc::channel::<()>(1);
        let response = stream(never(), |_| async move {
            let _told = told;
            std::future::pending().await
        });
        drop(response);
        assert!(hears.recv().await.is_none());
    }

    #[tokio::test]
    async fn messages_are_read_however_they_are_cut() {
        let mut wire = BytesMut::new();
        wire.extend_from_slice(&envelope(0, &json!({ "a": 1 })));
        wire.extend_from_slice(&envelope(0, &json!({ "b": 2 })));
        let parts: Vec<_> =
            wire.chunks(3).map(|c| Ok::<_, std::io::Error>(Bytes::copy_from_slice(c))).collect();
        let body = Body::from_stream(stream::iter(parts));
        let mut messages = Messages::new(&headers(&[("content-type", STREAM)]), body).unwrap();
        assert_eq!(messages.next::<Value>().await.unwrap(), Some(json!({ "a": 1 })));
        assert_eq!(messages.next::<Value>().await.unwrap(), Some(json!({ "b": 2 })));
        assert_eq!(messages.next::<Value>().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_not_json_is_refused() {
        let proto = headers(&[("content-type", "application/proto")]);
        assert_eq!(unary::<Value>(&proto, Body::empty()).await.unwrap_err().status(), 415);
        let zipped = headers(&[("content-type", UNARY), ("content-encoding", "gzip")]);
        assert_eq!(unary::<Value>(&zipped, Body::empty()).await.unwrap_err().status(), 501);
        let cut = headers(&[("content-type", STREAM)]);
        let fault = single::<Value>(&cut, Body::from(&b"\0\0\0\0\x05{}"[..])).await.unwrap_err();
        assert_eq!(fault.status(), 400);
    }

    #[test]
    fn deadlines_and_periods() {
        let ms = |v| timeout(&headers(&[("connect-timeout-ms", v)]));
        assert_eq!(ms("1500").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(ms("0").unwrap(), None);
        assert!(ms("-1").is_err() && ms("99999999999").is_err());
        assert_eq!(ping_period(&headers(&[("keepalive-ping-interval", "50")])), Duration::from_secs(50));
        assert_eq!(ping_period(&headers(&[("keepalive-ping-interval", "0")])), Duration::from_secs(1));
        assert_eq!(ping_period(&HeaderMap::new()), PING_DEFAULT);
    }

    #[test]
    fn base64_of_any_kind_is_read() {
        #[derive(Deserialize)]
        struct Holder {
            #[serde(default, deserialize_with = "base64_bytes")]
            b: Option<Bytes>,
        }
        for text in ["+/8=", "-_8=", "+/8", "-_8"] {
            let holder: Holder = serde_json::from_value(json!({ "b": text })).unwrap();
            assert_eq!(holder.b.unwrap(), &b"\xfb\xff"[..]);
        }
        assert!(serde_json::from_value::<Holder>(json!({ "b": "%" })).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_envelopes_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_envelope(&mut buffer) {}
        }
    }
}
