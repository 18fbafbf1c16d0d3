//! By Streamable HTTP: any number of clients, each with the key, at `/mcp`.
//!
//! The order of a request: its origin and host, its key, its body (bounded), a place for its session, the SDK. The
//! first two are there for browsers: a page of anywhere can make one send requests to a port of this machine, and a
//! name that is made to point here (DNS rebinding) would make it read the answers too.

mod origin;

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use libdsec::{Error, Result};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use subtle::ConstantTimeEq;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::{limit, server::Tools};

const PATH: &str = "/mcp";

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Who may come in.
pub struct Door {
    /// What `Authorization: Bearer` must say.
    pub key: String,
    /// Names by which it may be called, beside loopback and the address itself.
    pub hosts: Vec<String>,
    /// Origins of pages that may call it, beside those of loopback: `https://example.org`.
    pub origins: Vec<String>,
}

struct Front {
    door: Door,
    /// Where it listens.
    local: SocketAddr,
    sessions: Arc<LocalSessionManager>,
    service: StreamableHttpService<Tools, LocalSessionManager>,
}

/// Serves until `stop` is cancelled. Errors: a key that nobody can send.
pub async fn serve_http(
    tools: &Tools,
    listener: TcpListener,
    door: Door,
    stop: CancellationToken,
) -> Result<()> {
    if door.key.is_empty() {
        return Err(Error::invalid("the key is empty"));
    }
    let local = listener.local_addr().map_err(|e| Error::internal(format!("the listener: {e}")))?;
    let front = Arc::new(Front::new(tools, local, door, stop.child_token()));
    let places = Arc::new(Semaphore::new(limit::CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((socket, place)) = accepted else { continue };
        let front = front.clone();
        connections.spawn(async move {
            connection(socket, front).await;
            drop(place);
        });
    }
    tools.end_calls();
    // The last answers may still go out.
    let _ =
        tokio::time::timeout(limit::GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((socket, _)) => Some((socket, place)),
        Err(e) => {
            tracing::warn!(error = %e, "accepting a connection");
            // Out of file descriptors, it would be asked again and again.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection(socket: TcpStream, front: Arc<Front>) {
    let service = service_fn(move |request| {
        let front = front.clone();
        async move { Ok::<_, Infallible>(front.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit::REQUEST_WITHIN)
        .serve_connection(TokioIo::new(socket), service);
    if let Err(e) = served.await {
        tracing::debug!(error = %e, "a connection broke");
    }
}

impl Front {
    fn new(tools: &Tools, local: SocketAddr, door: Door, stop: CancellationToken) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(limit::SESSION_IDLE);
        let sessions = Arc::new(sessions);
        // Origin and host are looked at here, before the key is.
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop)
            .with_max_request_body_bytes(limit::REQUEST_BYTES_MAX)
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let tools = tools.clone();
        let service = StreamableHttpService::new(move || Ok(tools.clone()), sessions.clone(), config);
        Self { door, local, sessions, service }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if let Some(refusal) = self.refusal(request.uri().path(), request.headers()) {
            return refusal;
        }
        let (head, body) = request.into_parts();
        let read = Limited::new(body, limit::REQUEST_BYTES_MAX).collect();
        let body = match tokio::time::timeout(limit::REQUEST_WITHIN, read).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() => {
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
            }
            Ok(Err(_)) => return refuse(StatusCode::BAD_REQUEST, "the request was cut off"),
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive"),
        };
        if self.begins_session(&head.headers, &body) && self.is_full().await {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many sessions; end one");
        }
        let Ok(answer) = self.service.clone().call(Request::from_parts(head, Full::new(body))).await;
        answer
    }

    /// Why a request may not come in.
    fn refusal(&self, path: &str, headers: &HeaderMap) -> Option<Answer> {
        if !origin::may_come(headers, self.local, &self.door) {
            let text = "this origin or host is not let in (--allow-origin, --allow-host)";
            return Some(refuse(StatusCode::FORBIDDEN, text));
        }
        if path != PATH {
            return Some(refuse(StatusCode::NOT_FOUND, "MCP is at /mcp"));
        }
        let said = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let key = said.split_first_chunk::<7>().filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        if key.is_some_and(|(_, key)| bool::from(key.ct_eq(self.door.key.as_bytes()))) {
            return None;
        }
        let text = "the key is missing or wrong: Authorization: Bearer KEY";
        let mut refusal = refuse(StatusCode::UNAUTHORIZED, text);
        let bearer = header::HeaderValue::from_static("Bearer");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        Some(refusal)
    }

    /// Only a handshake makes a session.
    fn begins_session(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        #[derive(serde::Deserialize)]
        struct Peek<'a> {
            #[serde(borrow)]
            method: std::borrow::Cow<'a, str>,
        }
        !headers.contains_key("mcp-session-id")
            && serde_json::from_slice::<Peek<'_>>(body).is_ok_and(|peek| peek.method == "initialize")
    }

    async fn is_full(&self) -> bool {
        self.sessions.sessions.read().await.len() >= limit::SESSIONS_MAX
    }
}

fn refuse(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer
}
