//! fetch_port: one HTTP request to a server inside, and its answer. No network of the sandbox is needed.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use libdsec::{Code, Error, Port, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CHANGES, Call, Hints, Verb, exec::output_chars, line, within_bounds};
use crate::{limit, text};

pub(super) struct FetchPort;

/// How the message is framed is ours to say.
const FRAMING: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The port that the server listens on, inside.
    #[schemars(range(min = 1, max = 65535))]
    port: u16,
    /// Path and query, e.g. /items?page=2.
    #[serde(default)]
    path: Option<String>,
    /// GET unless told otherwise.
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The request's body.
    #[serde(default)]
    body: Option<String>,
    /// Seconds to wait for the answer: 30 unless told otherwise, at most 300.
    #[serde(default)]
    timeout_s: Option<u64>,
    /// How many characters of the body to answer with; 30000 unless told otherwise.
    #[serde(default)]
    max_output_chars: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    /// The start of the body, as text; empty where it is none.
    body: String,
    /// The body goes on.
    truncated: bool,
    /// The body is no text, and not shown.
    binary: bool,
}

impl Verb for FetchPort {
    const NAME: &'static str = "fetch_port";
    const TITLE: &'static str = "Fetch from a port";
    const ABOUT: &'static str = "Send one HTTP request to a server that listens on a port inside the sandbox, and answer with its response. \
        Works without any network of the sandbox. Redirects are not followed.";
    const HINTS: Hints = CHANGES;
    type Args = Args;
    type Answer = Answer;

    fn within(args: &Args) -> Duration {
        limit::CALL_WITHIN + Duration::from_secs(args.timeout_s.unwrap_or(0).min(limit::FETCH_S_MAX))
    }

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let seconds = args.timeout_s.unwrap_or(limit::FETCH_S_DEFAULT);
        let within = Duration::from_secs(within_bounds("timeout_s", seconds, 1, limit::FETCH_S_MAX)?);
        let chars_max = output_chars(args.max_output_chars)?;
        within_bounds("port", args.port.into(), 1, u16::MAX.into())?;
        let port = call.sandbox().await?.port(args.port);
        let request = request(args)?;
        tokio::time::timeout(within, exchange(&port, request, chars_max)).await.map_err(|_| {
            Error::new(Code::DeadlineExceeded, format!("the server inside did not answer within {seconds} s"))
        })?
    }
}

fn request(args: Args) -> Result<Request<Full<Bytes>>> {
    let method = args.method.as_deref().unwrap_or("GET");
    let method = Method::from_bytes(method.as_bytes()).map_err(|e| Error::invalid(format!("method: {e}")))?;
    if method == Method::CONNECT {
        return Err(Error::invalid("method: CONNECT makes a tunnel; this is for one request and its answer"));
    }
    let path = args.path.unwrap_or_else(|| "/".into());
    if !path.starts_with('/') {
        return Err(Error::invalid("path: must start with a slash"));
    }
    let body = Full::from(args.body.unwrap_or_default());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, format!("localhost:{}", args.port))
        .header(header::CONNECTION, "close")
        .body(body)
        .map_err(|e| Error::invalid(format!("path: {e}")))?;
    for (name, value) in &args.headers {
        let invalid =
            |e: &dyn std::fmt::Display| Error::invalid(format!("headers: {}: {e}", line(name.as_bytes())));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| invalid(&e))?;
        if FRAMING.contains(&name) {
            return Err(invalid(&"is set by itself"));
        }
        request.headers_mut().insert(name, HeaderValue::from_str(value).map_err(|e| invalid(&e))?);
    }
    Ok(request)
}

async fn exchange(port: &Port, request: Request<Full<Bytes>>, chars_max: usize) -> Result<Answer> {
    let io = TokioIo::new(port.connect().await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(|e| failed(&e))?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await.map_err(|e| failed(&e))?.into_parts();
        let (body, truncated) = start_of(body, chars_max).await?;
        Ok(Answer::new(head.status.as_u16(), &head.headers, &body, truncated))
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        done = &mut exchange => done,
        // The connection may end with its last bytes still to be taken.
        _ = &mut connection => exchange.await,
    }
}

fn failed(e: &dyn std::fmt::Display) -> Error {
    Error::new(Code::SandboxBroken, format!("HTTP with the server inside: {e}"))
}

/// At most `bytes_max` bytes, and whether there is more.
async fn start_of(mut body: Incoming, bytes_max: usize) -> Result<(Vec<u8>, bool)> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| failed(&e))?.into_data() else { continue };
        let room = bytes_max - start.len();
        start.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return Ok((start, true));
        }
    }
    Ok((start, false))
}

impl Answer {
    fn new(status: u16, headers: &HeaderMap, body: &[u8], truncated: bool) -> Self {
        let shown = headers.iter().take(limit::HEADERS_MAX);
        let headers =
            shown.map(|(k, v)| (k.to_string(), text::line(v.as_bytes(), limit::HEADER_CHARS_MAX))).collect();
        let whole = &body[..body.len() - if truncated { text::unfinished(body) } else { 0 }];
        let binary = body.contains(&0) || std::str::from_utf8(whole).is_err();
        let body = if binary { String::new() } else { text::clean(whole) };
        Self { status, headers, body, truncated, binary }
    }
}
