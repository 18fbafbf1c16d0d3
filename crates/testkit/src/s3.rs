//! A real S3 server on loopback, on threads of its own, until it is dropped: as slow as it is told to be, and it counts.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use hyper::{
    Method, Request, Response,
    body::Incoming,
    header::{CONTENT_LENGTH, RANGE},
    service::Service,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{
    Body, HttpError,
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};

pub const KEY: &str = "key-of-a-test";
/// Reads that are remembered: a server of a long benchmark must not grow for ever.
const READS_MAX: usize = 1 << 16;

/// How far away it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Link {
    /// Before each answer.
    pub delay: Duration,
    /// Of all bodies that go out, together; 0: no bound.
    pub bytes_per_s: u64,
}

/// A GET of an object: the path, the first byte and how many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Read {
    pub path: String,
    pub start: u64,
    pub bytes: u64,
}

/// What was asked of it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub reads: Vec<Read>,
    pub sent_bytes: u64,
    pub in_flight: usize,
    pub in_flight_max: usize,
}

#[derive(Default)]
struct State {
    link: Link,
    /// When all that was let go so far has passed.
    free_at: Option<Instant>,
    seen: Seen,
}

/// See the module.
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    runtime: Option<tokio::runtime::Runtime>,
    dir: tempfile::TempDir,
    bucket: String,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// With one bucket, whose objects are files below a directory of its own in `/var/tmp`.
    pub fn start(bucket: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("dsec-s3-").tempdir_in("/var/tmp")?;
        std::fs::create_dir(dir.path().join(bucket))?;
        let files =
            s3s_fs::FileSystem::new(dir.path()).map_err(|e| anyhow::anyhow!("files of a server: {e:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, KEY));
        let state = Arc::new(Mutex::new(State::default()));
        let service = Watched { inner: service.build(), state: state.clone() };
        // A runtime of its own: tests block theirs while a command runs that asks us.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let serving = Builder::new(TokioExecutor::new());
                    let _ = serving.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Ok(Self { address, state, runtime: Some(runtime), dir, bucket: bucket.to_owned() })
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its objects, as files.
    pub fn objects(&self) -> PathBuf {
        self.path().join(&self.bucket)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn set_link(&self, link: Link) {
        lock(&self.state).link = link;
    }

    /// What was asked since the last time, and forgets it.
    pub fn take_seen(&self) -> Seen {
        let mut state = lock(&self.state);
        let now = Seen { in_flight: state.seen.in_flight, ..Seen::default() };
        std::mem::replace(&mut state.seen, now)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct Watched {
    inner: S3Service,
    state: Arc<Mutex<State>>,
}

/// In flight until it is dropped: answered, or given up by who asked.
struct Counted(Arc<Mutex<State>>);

impl Counted {
    fn new(state: Arc<Mutex<State>>) -> Self {
        let mut now = lock(&state);
        now.seen.in_flight += 1;
        now.seen.in_flight_max = now.seen.in_flight_max.max(now.seen.in_flight);
        drop(now);
        Self(state)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        lock(&self.0).seen.in_flight -= 1;
    }
}

impl State {
    /// Notes an answer of `bytes`; when its last byte has passed.
    fn let_go(&mut self, read: Option<Read>, bytes: u64) -> Instant {
        let now = Instant::now();
        self.seen.sent_bytes += bytes;
        self.seen.reads.extend(read.filter(|_| self.seen.reads.len() < READS_MAX));
        if self.link.bytes_per_s == 0 {
            return now + self.link.delay;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.link.bytes_per_s as f64);
        let free_at = self.free_at.map_or(now, |at| at.max(now)) + takes;
        self.free_at = Some(free_at);
        free_at + self.link.delay
    }
}

/// `bytes=<start>-...`
fn start_of(request: &Request<Incoming>) -> u64 {
    let range = request.headers().get(RANGE).and_then(|v| v.to_str().ok());
    let start = range.and_then(|r| r.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    start.unwrap_or(0)
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<Body>;
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_read = request.method() == Method::GET && request.uri().query().is_none();
        let (path, start) = (request.uri().path().to_owned(), start_of(&request));
        let (state, counted) = (self.state.clone(), Counted::new(self.state.clone()));
        let answering = Service::<Request<Incoming>>::call(&self.inner, request);
        Box::pin(async move {
            let answer = answering.await?;
            let length = answer.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
            let bytes = length.and_then(|l| l.parse().ok()).filter(|_| is_read).unwrap_or(0);
            let read = (is_read && answer.status().is_success()).then_some(Read { path, start, bytes });
            let at = lock(&state).let_go(read, bytes);
            tokio::time::sleep_until(at.into()).await;
            drop(counted);
            Ok(answer)
        })
    }
}
