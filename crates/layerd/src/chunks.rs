//! From a range of a layer's data to its bytes: memory, else the cache, else the store.
//!
//! One fetch for each chunk at a time, however many wait for it. A fetch takes the neighbours along: those that the
//! read needs, and with sequential reads some ahead, in one ranged read of the store.
//!
//! Invariant: bytes enter memory only from `Manifest::unpack`, which checks them.

use std::{
    collections::{HashMap, hash_map},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use storage::{
    Store,
    manifest::BATCH_CHUNKS,
    table::{CHUNK_BYTES, Value},
};
use tokio::sync::{Semaphore, watch};

use crate::{cache::Cache, layers::Layer, memory::Memory};

/// Fetches from the store at once: each is up to a batch.
const FETCHES_IN_FLIGHT: usize = 16;
/// Chunks that a sequential reader is ahead of what it asked for, at most.
const AHEAD_MAX: usize = 16;

/// What a layer's last read was.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ahead {
    next: usize,
    window: usize,
}

impl Ahead {
    /// How many chunks to take along after a read of `first..=last`: twice as many each time it goes on where it was.
    fn turn(&mut self, first: usize, last: usize) -> usize {
        let goes_on = first == self.next || first + 1 == self.next;
        self.window = match (goes_on, last + 1 > self.next) {
            (true, true) => (self.window * 2).clamp(1, AHEAD_MAX),
            // The same chunk again.
            (true, false) => self.window,
            (false, _) => 0,
        };
        self.next = last + 1;
        self.window
    }
}

/// None: not yet. Err: it cannot be had now.
type Outcome = Option<Result<Bytes, ()>>;

pub struct Chunks {
    store: Store,
    cache: Cache,
    memory: Mutex<Memory>,
    flights: Mutex<HashMap<Value, watch::Receiver<Outcome>>>,
    places: Semaphore,
}

/// A chunk on its way, and whom to tell.
struct Wanted {
    index: usize,
    value: Value,
    tell: watch::Sender<Outcome>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chunks {
    pub fn new(store: Store, cache: Cache) -> Self {
        Self {
            store,
            cache,
            memory: Mutex::default(),
            flights: Mutex::default(),
            places: Semaphore::new(FETCHES_IN_FLIGHT),
        }
    }

    /// The bytes of `offset..offset + size` as far as there are any, in pieces. Err: some of them cannot be had now.
    pub async fn read(
        self: &Arc<Self>,
        layer: &Arc<Layer>,
        offset: u64,
        size: u32,
    ) -> Result<Vec<Bytes>, ()> {
        let end = offset.saturating_add(size.into()).min(layer.manifest.blob_bytes);
        if offset >= end {
            return Ok(Vec::new());
        }
        let first = (offset / CHUNK_BYTES as u64) as usize;
        let last = ((end - 1) / CHUNK_BYTES as u64) as usize;
        let ahead = lock(&layer.ahead).turn(first, last);
        let wait: Vec<_> = self.ask(layer, first, last, ahead);
        let mut pieces = Vec::with_capacity(wait.len());
        for (index, chunk) in (first..).zip(wait) {
            let chunk = chunk.get().await?;
            let start = (index * CHUNK_BYTES) as u64;
            let from = offset.saturating_sub(start) as usize;
            let to = ((end - start) as usize).min(chunk.len());
            pieces.push(chunk.slice(from..to));
        }
        Ok(pieces)
    }

    /// Starts what has to be fetched; gives what to wait for.
    fn ask(self: &Arc<Self>, layer: &Arc<Layer>, first: usize, last: usize, ahead: usize) -> Vec<Wait> {
        let end = (last + 1 + ahead).min(layer.manifest.chunks());
        let (mut wait, mut wanted) = (Vec::new(), Vec::new());
        let (memory, mut flights) = (lock(&self.memory), lock(&self.flights));
        for index in first..end {
            let Some(spot) = layer.manifest.spot(index) else { break };
            let value = spot.chunk.value;
            let one = match (memory.get(&value), flights.entry(value)) {
                (Some(chunk), _) => Wait::Here(chunk),
                (None, hash_map::Entry::Occupied(flight)) => Wait::Flight(flight.get().clone()),
                (None, hash_map::Entry::Vacant(place)) => {
                    let (tell, told) = watch::channel(None);
                    place.insert(told.clone());
                    wanted.push(Wanted { index, value, tell });
                    Wait::Flight(told)
                }
            };
            if index <= last {
                wait.push(one);
            }
        }
        drop((memory, flights));
        for run in runs(wanted) {
            tokio::spawn(self.clone().fill(layer.clone(), run));
        }
        wait
    }

    /// Gets the chunks of one run, tells who waits, and forgets the flights, whatever happens.
    async fn fill(self: Arc<Self>, layer: Arc<Layer>, run: Vec<Wanted>) {
        let mut missing = Vec::new();
        for wanted in run {
            match self.cached(&layer, &wanted).await {
                Some(chunk) => self.land(&wanted, Ok(chunk)),
                None => missing.push(wanted),
            }
        }
        for run in runs(missing) {
            self.fetch(&layer, run).await;
        }
    }

    async fn cached(self: &Arc<Self>, layer: &Arc<Layer>, wanted: &Wanted) -> Option<Bytes> {
        let (chunks, layer, index, value) = (self.clone(), layer.clone(), wanted.index, wanted.value);
        let read = tokio::task::spawn_blocking(move || {
            let stored = chunks.cache.get(&value)?;
            let plain = layer.manifest.unpack(index, &stored);
            if plain.is_err() {
                tracing::warn!(layer = layer.hex, index, "a damaged chunk leaves the cache");
                chunks.cache.discard(&value);
            }
            plain.ok()
        });
        read.await.ok().flatten().map(Bytes::from)
    }

    async fn fetch(self: &Arc<Self>, layer: &Arc<Layer>, run: Vec<Wanted>) {
        let Some(first) = run.first().map(|wanted| wanted.index) else { return };
        let place = self.places.acquire().await;
        match self.store.chunks(&layer.manifest, first, run.len()).await {
            Ok(fetched) => {
                for (wanted, chunk) in run.iter().zip(fetched) {
                    layer.count_fetched(chunk.plain.len() as u64);
                    self.land(wanted, Ok(chunk.plain));
                    let (chunks, value) = (self.clone(), wanted.value);
                    // Nobody waits for it, and what is not cached is fetched again.
                    let _ = tokio::task::spawn_blocking(move || {
                        if let Err(error) = chunks.cache.put(&value, &chunk.stored) {
                            tracing::warn!(%error, "a chunk is not cached");
                        }
                    })
                    .await;
                }
            }
            // One that is damaged must not take its neighbours along.
            Err(storage::Error::Damaged(_)) if run.len() > 1 => {
                drop(place);
                for wanted in run {
                    Box::pin(self.fetch(layer, vec![wanted])).await;
                }
            }
            Err(error) => {
                tracing::error!(%error, layer = layer.hex, first, count = run.len(), "chunks cannot be had");
                run.iter().for_each(|wanted| self.land(wanted, Err(())));
            }
        }
    }

    fn land(&self, wanted: &Wanted, outcome: Result<Bytes, ()>) {
        if let Ok(chunk) = &outcome {
            lock(&self.memory).put(wanted.value, chunk.clone());
        }
        lock(&self.flights).remove(&wanted.value);
        wanted.tell.send_replace(Some(outcome));
    }
}

/// What a read waits for.
enum Wait {
    Here(Bytes),
    Flight(watch::Receiver<Outcome>),
}

impl Wait {
    async fn get(self) -> Result<Bytes, ()> {
        match self {
            Self::Here(chunk) => Ok(chunk),
            Self::Flight(mut told) => {
                told.wait_for(Option::is_some).await.map_err(|_| ())?.clone().unwrap_or(Err(()))
            }
        }
    }
}

/// Neighbours of one batch together.
fn runs(wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    let mut runs: Vec<Vec<Wanted>> = Vec::new();
    for one in wanted {
        let goes_on = runs.last().and_then(|run| run.last()).is_some_and(|before| {
            before.index + 1 == one.index && before.index / BATCH_CHUNKS == one.index / BATCH_CHUNKS
        });
        match runs.last_mut() {
            Some(run) if goes_on => run.push(one),
            _ => runs.push(vec![one]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(index: usize) -> Wanted {
        Wanted { index, value: Value([0; 32]), tell: watch::channel(None).0 }
    }

    #[test]
    fn a_run_is_of_neighbours_in_one_batch() {
        let all = [0, 1, 3, 30, 31, 32, 33].map(wanted).into();
        let lengths: Vec<usize> = runs(all).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 1, 2, 2]);
    }

    #[test]
    fn who_reads_on_is_read_ahead_of() {
        let mut ahead = Ahead::default();
        let windows: Vec<usize> = (0..7).map(|n| ahead.turn(n, n)).collect();
        assert_eq!(windows, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(ahead.turn(6, 6), 16, "the rest of the same chunk");
        assert_eq!((ahead.turn(90, 90), ahead.turn(40, 40), ahead.turn(41, 41)), (0, 0, 1));
    }
}
