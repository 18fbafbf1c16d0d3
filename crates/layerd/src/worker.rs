//! The worker: answers the kernel. Its standard input is `/dev/fuse`, opened and mounted by the holder.
//!
//! Invariant: it needs nothing from a worker before it. What that one had read and not answered the kernel sends again.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::io::Errno;
use storage::{Store, StoreConfig};
use tokio::sync::Semaphore;

use crate::{
    cache::Cache,
    chunks::Chunks,
    layers::{BLOB, Layer, Layers, Node},
    place::{self, Place},
    prefetch,
    wire::{self, Ask, Request},
};

/// Requests that are worked on at once; the kernel keeps the rest.
const REQUESTS_IN_FLIGHT: usize = 256;
const STATS_PERIOD: Duration = Duration::from_millis(200);

struct Worker {
    fuse: OwnedFd,
    layers: Layers,
    chunks: Arc<Chunks>,
    prefetch: bool,
    /// For one answer: what it needs may have waited for another fetch, with its own deadline, to end.
    read_within: Duration,
}

/// Serves until the connection ends. `is_first`: no worker of this connection came before.
pub fn run(data: &Path, is_first: bool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(data, is_first))
}

async fn serve(data: &Path, is_first: bool) -> io::Result<()> {
    let place = Place::new(data);
    let fuse = io::stdin().as_fd().try_clone_to_owned()?;
    let config: StoreConfig = serde_json::from_slice(&std::fs::read(place.config())?)?;
    let store = Store::open(&config).map_err(io::Error::other)?;
    let cache = Cache::open(&place.cache(), config.cache_bytes_max)?;
    let chunks = Arc::new(Chunks::new(store, cache));
    place::write_whole(&place.worker(), std::process::id().to_string().as_bytes())?;
    let layers = Layers::new(&place.layers(), place::fetched(data));
    let read_within = Duration::from_millis(config.read_within_ms) * 9 / 4;
    let worker = Arc::new(Worker { fuse, layers, chunks, prefetch: config.prefetch, read_within });
    if !is_first {
        // Before the first read, so that what is sent again comes to us as any other.
        rustix::io::write(&worker.fuse, &wire::resend())?;
    }
    tokio::spawn(keep_told(worker.clone(), place));
    tokio::spawn(tell_touched(worker.clone(), Duration::from_millis(config.trace_idle_ms)));
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || listen(&worker, &handle)).await.map_err(io::Error::other)?
}

/// Reads requests, on a thread of its own, until the file system is unmounted.
fn listen(worker: &Arc<Worker>, runtime: &tokio::runtime::Handle) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT));
    let mut buffer = vec![0; wire::REQUEST_BYTES_MAX];
    loop {
        let place = runtime.block_on(places.clone().acquire_owned()).map_err(io::Error::other)?;
        let length = match rustix::io::read(&worker.fuse, &mut buffer) {
            Ok(0) | Err(Errno::NODEV) => return Ok(()),
            Ok(length) => length,
            // Interrupted before it was read by anyone.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(request) = wire::parse(&buffer[..length]) else {
            tracing::error!(length, "the kernel sent what is no request");
            continue;
        };
        match request.ask {
            Ask::Read { offset, size } => {
                let worker = worker.clone();
                runtime.spawn(async move {
                    worker.read(&request, offset, size).await;
                    drop(place);
                });
            }
            _ => worker.answer(&request),
        }
    }
}

impl Worker {
    async fn read(&self, request: &Request, offset: u64, size: u32) {
        let Some(Node::File(layer)) = self.layers.node(request.node) else {
            return self.fail(request, wire::EIO);
        };
        self.look_at(&layer);
        let reading = self.chunks.read(&layer, offset, size.min(wire::READ_BYTES_MAX));
        match tokio::time::timeout(self.read_within, reading).await {
            Ok(Ok(pieces)) => self.reply(request, 0, &pieces),
            Ok(Err(())) => self.fail(request, wire::EIO),
            Err(_) => {
                tracing::error!(layer = layer.hex, offset, "a read was not done in time");
                self.fail(request, wire::EIO);
            }
        }
    }

    /// All that needs no store.
    fn answer(&self, request: &Request) {
        let body = match &request.ask {
            Ask::Silent => return,
            Ask::Init { minor, max_readahead, flags } => Some(wire::init(*minor, *max_readahead, *flags)),
            Ask::Lookup { name } => match self.layers.node(request.node) {
                Some(Node::Root) => self.layers.named(name).map(|layer| {
                    self.look_at(&layer);
                    layer.directory().entry()
                }),
                Some(Node::Directory(layer)) if name == BLOB => Some(layer.file().entry()),
                _ => None,
            },
            Ask::Attributes => self.layers.node(request.node).map(|node| match node {
                Node::Root => {
                    wire::Attributes { node: crate::layers::ROOT, size: 0, is_directory: true }.stat()
                }
                Node::Directory(layer) => layer.directory().stat(),
                Node::File(layer) => layer.file().stat(),
            }),
            Ask::Open => Some(wire::opened()),
            Ask::Statfs => Some(wire::statfs()),
            Ask::Done | Ask::ReadDir => Some(Vec::new()),
            Ask::Read { .. } | Ask::Unknown => return self.fail(request, wire::ENOSYS),
        };
        match body {
            Some(body) => self.reply(request, 0, &[body.into()]),
            None => self.fail(request, wire::ENOENT),
        }
    }

    /// Begins the prefetch of a layer that is looked at for the first time.
    fn look_at(&self, layer: &Arc<Layer>) {
        if self.prefetch && layer.begin_prefetch() {
            tokio::spawn(prefetch::run(self.chunks.clone(), layer.clone()));
        }
    }

    fn fail(&self, request: &Request, error: i32) {
        self.reply(request, error, &[]);
    }

    fn reply(&self, request: &Request, error: i32, parts: &[Bytes]) {
        let head = wire::head(request.unique, error, parts.iter().map(Bytes::len).sum());
        match rustix::io::writev(&self.fuse, &wire::slices(&head, parts)) {
            // NOENT: who asked was interrupted meanwhile.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::error!(%error, "an answer was refused"),
        }
    }
}

/// Tells the store what was read first of each layer, one after the other.
async fn tell_touched(worker: Arc<Worker>, idle: Duration) {
    loop {
        tokio::time::sleep(STATS_PERIOD).await;
        for layer in worker.layers.all() {
            let due =
                layer.touched.lock().unwrap_or_else(PoisonError::into_inner).take_due(idle, Instant::now());
            let Some(touched) = due else { continue };
            match worker.chunks.store().put_trace(&layer.manifest, &touched).await {
                Ok(true) => {
                    tracing::info!(layer = layer.hex, chunks = touched.len(), "its trace is in the store")
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, layer = layer.hex, "its trace is not in the store"),
            }
        }
    }
}

/// Writes what was fetched to a file, while it changes.
async fn keep_told(worker: Arc<Worker>, place: Place) {
    let mut told = worker.layers.fetched();
    loop {
        tokio::time::sleep(STATS_PERIOD).await;
        let now = worker.layers.fetched();
        if now == told {
            continue;
        }
        let written = serde_json::to_vec(&now).map_err(io::Error::from);
        if let Err(error) = written.and_then(|json| place::write_whole(&place.stats(), &json)) {
            tracing::warn!(%error, "what was fetched is not told");
        }
        told = now;
    }
}
