//! Accepting connections and driving them.

use std::{convert::Infallible, io, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use api::{Error, RequestId};
use axum::{Router, body::Body, response::Response};
use futures_util::FutureExt;
use http::{Extensions, Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower::ServiceExt;

use super::answer::{Fault, stamp};
#[cfg(feature = "http2")]
use super::sniff;
use crate::request;

/// A head must be complete by then; also how long an idle connection is kept. Clients drop theirs sooner.
const HEAD_DEADLINE: Duration = Duration::from_secs(25);
/// From shutdown to hanging up on what still runs.
const GRACE: Duration = Duration::from_secs(5);
/// Connections at once; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16_384;
/// Requests at once on one HTTP/2 connection.
#[cfg(feature = "http2")]
const STREAMS_MAX: u32 = 250;
/// What a client may send ahead of a slow handler: of one request, of all on its connection.
#[cfg(feature = "http2")]
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
#[cfg(feature = "http2")]
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// An HTTP/2 client that does not answer a ping is gone.
#[cfg(feature = "http2")]
const PING_PERIOD: Duration = Duration::from_secs(30);
/// After a failed accept (no descriptors left, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a service listens.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// Becomes true when the server stops; upgraded connections end with it. In each request's extensions.
#[derive(Clone)]
pub struct Stopping(Option<watch::Receiver<bool>>);

impl Stopping {
    /// That of the server which a request came to; of none, it never comes. `extensions`: the request's.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or(Self(None))
    }

    /// Comes when the server stops. Long answers end themselves then, so that it need not hang up on them.
    pub async fn wait(self) {
        match self.0 {
            // An error is a server that is gone: the same.
            Some(mut stopping) => drop(stopping.wait_for(|stopping| *stopping).await),
            None => std::future::pending().await,
        }
    }
}

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Socket>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                crate::socket::tune(&stream);
                Box::new(stream)
            }
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves `router` until `shutdown`, then lets what runs end for a few seconds. Runs on any tokio runtime.
pub async fn serve(
    listener: Listener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stop, stopping) = watch::channel(false);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (socket, permit) = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &permits) => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        connections.spawn(connection(socket, router.clone(), Stopping(Some(stopping.clone())), permit));
    }
    drop(listener);
    // All receivers may be gone: nothing to tell then.
    let _ = stop.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        tracing::debug!("requests still ran at the end of the grace; hung up");
    }
    Ok(())
}

async fn accept(
    listener: &Listener,
    permits: &Arc<Semaphore>,
) -> io::Result<(Box<dyn Socket>, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, permit))
}

async fn connection(
    socket: Box<dyn Socket>,
    router: Router,
    stopping: Stopping,
    _permit: OwnedSemaphorePermit,
) {
    #[cfg(feature = "http2")]
    let socket = {
        let begun = tokio::select! {
            begun = tokio::time::timeout(HEAD_DEADLINE, sniff::begin(socket)) => begun,
            () = stopping.clone().wait() => return,
        };
        match begun {
            Ok(Ok(sniff::Begun::Http2(socket))) => return http2(socket, router, stopping).await,
            Ok(Ok(sniff::Begun::Http1(socket))) => socket,
            // It said nothing, or left.
            Ok(Err(_)) | Err(_) => return,
        }
    };
    let service = {
        let stopping = stopping.clone();
        service_fn(move |request: Request<Incoming>| answer(router.clone(), stopping.clone(), request))
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopping.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection broke");
    }
}

#[cfg(feature = "http2")]
async fn http2(socket: sniff::Rewound, router: Router, stopping: Stopping) {
    let service = {
        let stopping = stopping.clone();
        service_fn(move |request: Request<Incoming>| answer(router.clone(), stopping.clone(), request))
    };
    let connection = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_PERIOD)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopping.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection broke");
    }
}

async fn answer(
    router: Router,
    stopping: Stopping,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    let id = request
        .headers()
        .get(request::HEADER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or_else(RequestId::new);
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(stopping);
    let work = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
    let mut response = match request::scope(id.clone(), work).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            tracing::error!(request_id = %id, "a handler panicked");
            Fault::from(Error::internal("DSec failed on this request; its log has the request id"))
                .into_response(&id)
        }
    };
    stamp(&mut response, &id);
    Ok(response)
}
