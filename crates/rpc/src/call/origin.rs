//! One server: how to reach it, its key, its idle connections, and what its failures mean.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{Code, Error, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::body::{self, Answer, Body};
use crate::request;

/// Of a call whose work is bounded.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Of a call that has its own clock, or none.
pub(super) const NO_DEADLINE: Duration = Duration::from_secs(30 * 24 * 3600);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// The server keeps idle connections longer than this, so that it seldom closes one under a request.
const IDLE_MAX: Duration = Duration::from_secs(20);
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Idle connections to one aether: it pays for each with its sandbox's memory.
const IDLE_CONNECTIONS_AETHER_MAX: usize = 2;
/// A JSON answer. The largest is an exec's two outputs, as base64.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Of the process, of the machine: no room for one more open file.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const RETRY_AFTER_MS_FILES: u64 = 500;

pub(super) type Sender = SendRequest<Body>;

#[derive(Debug)]
pub(super) enum Target {
    /// `host:port`
    Tcp(String),
    Unix(PathBuf),
    /// The UNIX socket of one sandbox's agent: when it is gone, the sandbox is broken.
    Aether(PathBuf),
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Unix(path.trim_start_matches("//").into()));
        }
        let bad = || {
            Error::invalid(format!("`{url}` is not a DSec URL: expected `http://host:port` or `unix:/path`"))
        };
        if url.starts_with("https://") {
            return Err(Error::new(Code::Unsupported, "https is not supported yet: use http, or a tunnel"));
        }
        let authority = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
        let uri: http::uri::Authority = authority.parse().map_err(|_| bad())?;
        if uri.host().is_empty() || authority.contains('@') {
            return Err(bad());
        }
        Ok(Self::Tcp(format!("{}:{}", uri.host(), uri.port_u16().unwrap_or(80))))
    }

    fn name(&self) -> String {
        match self {
            Self::Tcp(authority) => format!("http://{authority}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Aether(_) => "the sandbox's agent".into(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Origin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    target: Target,
    host: HeaderValue,
    key: Option<HeaderValue>,
    idle: Mutex<Vec<(Instant, Sender)>>,
}

impl Origin {
    pub(super) fn new(target: Target, key: Option<&str>) -> Result<Self> {
        let bad = |_| Error::invalid("key: holds characters that no key has");
        let key = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}")).map_err(bad)).transpose()?;
        Ok(Self::made(target, key))
    }

    pub(super) fn without_key(target: Target) -> Self {
        Self::made(target, None)
    }

    fn made(target: Target, mut key: Option<HeaderValue>) -> Self {
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let host = match &target {
            Target::Tcp(authority) => HeaderValue::from_str(authority).ok(),
            _ => None,
        };
        let host = host.unwrap_or_else(|| HeaderValue::from_static("dsec"));
        Self(Arc::new(Inner { target, host, key, idle: Mutex::default() }))
    }

    /// A request with an empty body. `path`: path and query, encoded.
    pub(super) fn request(&self, method: Method, path: String) -> Request<Body> {
        let mut request = Request::new(body::empty());
        *request.method_mut() = method;
        // Made by us of encoded parts.
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.0.host.clone());
        if let Some(key) = &self.0.key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        if let Some(id) = request::current().and_then(|id| HeaderValue::from_str(id.as_str()).ok()) {
            headers.insert(request::HEADER, id);
        }
        request
    }

    /// A request with a JSON body.
    pub(super) fn request_json(
        &self,
        method: Method,
        path: String,
        value: &impl Serialize,
    ) -> Result<Request<Body>> {
        let json = serde_json::to_vec(value).map_err(|e| Error::invalid(format!("request: {e}")))?;
        let mut request = self.request(method, path).map(|_| body::full(json.into()));
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(request)
    }

    /// Sends it; the head of a good answer must come within `deadline`. Errors: the server's, or why none came.
    pub(super) async fn send(&self, request: Request<Body>, deadline: Duration) -> Result<Response<Answer>> {
        let exchange = async {
            let (sender, response) = self.exchange(request).await?;
            let (parts, body) = response.into_parts();
            let answer = Answer::new(body, sender, self.clone());
            self.checked(Response::from_parts(parts, answer)).await
        };
        timeout(deadline, exchange).await.map_err(|_| self.late(deadline))?
    }

    /// Sends it and reads a JSON answer.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
        deadline: Duration,
    ) -> Result<T> {
        let exchange = async {
            let response = self.send(request, deadline).await?;
            let bytes = self.whole(response.into_body(), ANSWER_BYTES_MAX).await?;
            serde_json::from_slice(&bytes).map_err(|e| {
                tracing::warn!(error = %e, "an answer was not what was asked for");
                Error::internal(format!("{} answered something else than asked for", self.name()))
            })
        };
        timeout(deadline, exchange).await.map_err(|_| self.late(deadline))?
    }

    /// Sends it and wants no answer but success.
    pub(super) async fn done(&self, request: Request<Body>, deadline: Duration) -> Result<()> {
        let response = self.send(request, deadline).await?;
        self.whole(response.into_body(), ANSWER_BYTES_MAX).await.map(|_| ())
    }

    /// Sends it on a connection of its own, which then speaks `protocol`.
    pub(super) async fn upgrade(
        &self,
        mut request: Request<Body>,
        protocol: &'static str,
    ) -> Result<TokioIo<Upgraded>> {
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
        let exchange = async {
            let mut sender = self.connect().await?;
            let response = sender.send_request(request).await.map_err(|e| self.lost(&e))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let (parts, body) = response.into_parts();
                let answer = Answer::new(body, sender, self.clone());
                self.checked(Response::from_parts(parts, answer)).await?;
                return Err(Error::internal(format!("{} did not switch to `{protocol}`", self.name())));
            }
            let upgraded = hyper::upgrade::on(response).await.map_err(|e| self.lost(&e))?;
            Ok(TokioIo::new(upgraded))
        };
        timeout(DEADLINE, exchange).await.map_err(|_| self.late(DEADLINE))?
    }

    /// One request and the head of its answer, on an idle connection where one is alive, else on a new one.
    async fn exchange(&self, mut request: Request<Body>) -> Result<(Sender, Response<Incoming>)> {
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                // It closed before a byte was sent: nothing happened, another may try.
                Err(mut e) => match e.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.lost(e.error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|e| self.lost(&e))?;
        Ok((sender, response))
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The youngest is last; when it is too old, all are.
        match idle.pop() {
            Some((since, sender)) if since.elapsed() < IDLE_MAX => Some(sender),
            _ => {
                idle.clear();
                None
            }
        }
    }

    /// Takes a connection back when its answer has been read to the end.
    pub(super) fn put_idle(&self, sender: Sender) {
        let max = match self.0.target {
            Target::Aether(_) => IDLE_CONNECTIONS_AETHER_MAX,
            _ => IDLE_CONNECTIONS_MAX,
        };
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < max && !sender.is_closed() {
            idle.push((Instant::now(), sender));
        }
    }

    async fn connect(&self) -> Result<Sender> {
        let connecting = async {
            match &self.0.target {
                Target::Tcp(authority) => {
                    let stream = TcpStream::connect(authority.as_str()).await?;
                    crate::socket::tune(&stream);
                    Ok(handshake(TokioIo::new(stream)).await)
                }
                Target::Unix(path) | Target::Aether(path) => {
                    Ok(handshake(TokioIo::new(UnixStream::connect(path).await?)).await)
                }
            }
        };
        match timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(handshake)) => handshake.map_err(|e| self.lost(&e)),
            Ok(Err(e)) => Err(self.unreachable(&e)),
            Err(_) => Err(self.unreachable(&std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// The answer, where its status is a good one; else the error that it carries.
    async fn checked(&self, response: Response<Answer>) -> Result<Response<Answer>> {
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let bytes = self.whole(response.into_body(), ERROR_BYTES_MAX).await?;
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            Error::internal(format!("{} answered {status} without a reason", self.name()))
        }))
    }

    async fn whole(&self, answer: Answer, bytes_max: usize) -> Result<Bytes> {
        match Limited::new(answer, bytes_max).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(e) => match e.downcast::<Error>() {
                Ok(e) => Err(*e),
                Err(_) => Err(Error::internal(format!("{} answered over {bytes_max} bytes", self.name()))),
            },
        }
    }

    fn name(&self) -> String {
        self.0.target.name()
    }

    /// The connection broke under a request or its answer.
    pub(super) fn lost(&self, error: &dyn std::error::Error) -> Error {
        // A body that failed says best why.
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(ours) = inner.downcast_ref::<Error>() {
                return ours.clone();
            }
            cause = inner.source();
        }
        tracing::debug!(%error, "a connection broke");
        self.broken(format!(
            "lost the connection to {}; whether the request was done is unknown",
            self.name()
        ))
    }

    /// The connection ended where more should have come.
    pub(super) fn ended(&self, what: &str) -> Error {
        self.broken(format!("lost the connection to {} before {what}", self.name()))
    }

    fn unreachable(&self, error: &std::io::Error) -> Error {
        tracing::debug!(%error, "no connection");
        if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
            // Nothing is wrong with the other side: a retry when others have ended may do.
            let message = "too many open files: the process that calls is at its RLIMIT_NOFILE";
            return Error::new(Code::NoCapacity, message).retry_after_ms(RETRY_AFTER_MS_FILES);
        }
        match self.0.target {
            Target::Aether(_) => self.broken("the sandbox's agent does not answer; stop the sandbox".into()),
            _ => self.broken(format!("cannot reach DSec at {}: is it up?", self.name())),
        }
    }

    fn broken(&self, message: String) -> Error {
        let code = match self.0.target {
            Target::Aether(_) => Code::SandboxBroken,
            _ => Code::Internal,
        };
        Error::new(code, message)
    }

    fn late(&self, deadline: Duration) -> Error {
        Error::new(
            Code::DeadlineExceeded,
            format!("{} did not answer within {} s", self.name(), deadline.as_secs()),
        )
    }
}

async fn handshake<IO>(io: TokioIo<IO>) -> hyper::Result<Sender>
where
    TokioIo<IO>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(io).await?;
    tokio::spawn(async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!(error = %e, "a connection broke");
        }
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_for_a_connection_is_no_fault_of_the_other_side() {
        let agent = Origin::without_key(Target::Aether("/nowhere".into()));
        let code = |errno| agent.unreachable(&std::io::Error::from_raw_os_error(errno)).code;
        assert_eq!((code(EMFILE), code(ENFILE)), (Code::NoCapacity, Code::NoCapacity));
        // ECONNREFUSED
        assert_eq!(code(111), Code::SandboxBroken);
    }
}
