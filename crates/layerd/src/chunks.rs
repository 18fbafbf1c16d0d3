//! From a range of a layer's data to its bytes: memory, else the cache, else the store.
//!
//! One fetch for each chunk at a time, however many wait for it. A fetch takes the neighbours along: those that the
//! read needs, and with sequential reads some ahead, in one ranged read of the store.
//!
//! Invariants: bytes enter memory only from `Manifest::unpack`, which checks them; of the places of [`FETCHES_IN_FLIGHT`]
//! none is ever held for what nobody asked for.

use std::{
    collections::{HashMap, hash_map},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use storage::{
    Store,
    manifest::BATCH_CHUNKS,
    table::{CHUNK_BYTES, Value},
};
use tokio::sync::{Semaphore, watch};

use crate::{cache::Cache, layers::Layer, memory::Memory, prefetch::RUNS_IN_FLIGHT};

/// Fetches from the store at once that somebody waits for: each is up to a batch. With those of the prefetch, 16.
const FETCHES_IN_FLIGHT: usize = 16 - RUNS_IN_FLIGHT;
/// Chunks that a sequential reader is ahead of what it asked for, at most.
const AHEAD_MAX: usize = 16;

/// Why a chunk is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Somebody reads it, or what is before it.
    Asked,
    /// A trace names it.
    Ahead,
}

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
    /// Of the prefetch.
    pub runs_ahead: Semaphore,
}

/// A chunk on its way, and whom to tell.
pub struct Wanted {
    index: usize,
    value: Value,
    tell: watch::Sender<Outcome>,
}

impl Wanted {
    pub fn stored_bytes(&self, layer: &Layer) -> u64 {
        layer.manifest.spot(self.index).map_or(0, |spot| spot.chunk.stored_bytes.into())
    }

    /// Besides the map of flights, which holds one as well.
    fn is_awaited(&self) -> bool {
        self.tell.receiver_count() > 1
    }
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
            runs_ahead: Semaphore::new(RUNS_IN_FLIGHT),
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Somebody waits for a place, or soon would.
    pub fn is_crowded(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Whether the cache takes so many bytes more without dropping any for them.
    pub fn has_room(&self, stored_bytes: u64) -> bool {
        self.cache.has_room(stored_bytes)
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
        lock(&layer.touched).note(first, last, Instant::now());
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
            tokio::spawn(self.clone().fill(layer.clone(), run, Why::Asked));
        }
        wait
    }

    /// Begins flights for those of `run` that are neither here nor on their way.
    pub fn want_ahead(&self, layer: &Layer, run: Range<usize>) -> Vec<Wanted> {
        let (memory, mut flights) = (lock(&self.memory), lock(&self.flights));
        let mut wanted = Vec::new();
        for index in run {
            let Some(spot) = layer.manifest.spot(index) else { break };
            let value = spot.chunk.value;
            if memory.get(&value).is_some() || self.cache.has(&value) {
                continue;
            }
            if let hash_map::Entry::Vacant(place) = flights.entry(value) {
                let (tell, told) = watch::channel(None);
                place.insert(told);
                wanted.push(Wanted { index, value, tell });
            }
        }
        wanted
    }

    /// Ends flights that were begun and are not wanted; for a reader that came meanwhile they are begun again.
    pub async fn give_up(self: &Arc<Self>, layer: &Arc<Layer>, wanted: Vec<Wanted>) {
        let awaited = wanted.into_iter().filter_map(|wanted| self.forget_unawaited(wanted)).collect();
        self.clone().fill(layer.clone(), awaited, Why::Asked).await;
    }

    /// Gets the chunks of one run, tells who waits, and forgets the flights, whatever happens. False: some of them cannot
    /// be had now.
    pub async fn fill(self: Arc<Self>, layer: Arc<Layer>, run: Vec<Wanted>, why: Why) -> bool {
        let mut missing = Vec::new();
        for wanted in run {
            match self.cached(&layer, &wanted).await {
                Some(chunk) => self.land(&wanted, Ok(chunk)),
                None => missing.push(wanted),
            }
        }
        let mut all = true;
        for run in runs(missing) {
            all &= self.fetch(&layer, run, why).await;
        }
        all
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

    async fn fetch(self: &Arc<Self>, layer: &Arc<Layer>, run: Vec<Wanted>, why: Why) -> bool {
        let Some(first) = run.first().map(|wanted| wanted.index) else { return true };
        let place = match why {
            Why::Asked => self.places.acquire().await.ok(),
            Why::Ahead => None,
        };
        match self.store.chunks(&layer.manifest, first, run.len()).await {
            Ok(fetched) => {
                for (wanted, chunk) in run.iter().zip(fetched) {
                    layer.count_fetched(chunk.plain.len() as u64, why);
                    // Memory is for what somebody wants now.
                    let at_once = why == Why::Asked || wanted.is_awaited();
                    if at_once {
                        self.land(wanted, Ok(chunk.plain.clone()));
                    }
                    self.keep(wanted.value, chunk.stored).await;
                    if !at_once {
                        self.arrive(wanted, Ok(chunk.plain));
                    }
                }
                true
            }
            // One that is damaged must not take its neighbours along.
            Err(storage::Error::Damaged(_)) if run.len() > 1 => {
                drop(place);
                let mut all = true;
                // Nor take long: what nobody waits for is left to who asks for it.
                let awaited: Vec<Wanted> =
                    run.into_iter().filter_map(|wanted| self.forget_unawaited(wanted)).collect();
                for wanted in awaited {
                    all &= Box::pin(self.fetch(layer, vec![wanted], why)).await;
                }
                all
            }
            Err(error) => {
                tracing::error!(%error, layer = layer.hex, first, count = run.len(), "chunks cannot be had");
                run.iter().for_each(|wanted| self.land(wanted, Err(())));
                false
            }
        }
    }

    /// Ends a flight that nobody waits for; gives it back where somebody does.
    fn forget_unawaited(&self, wanted: Wanted) -> Option<Wanted> {
        // Whoever begins to wait has the lock for it.
        let mut flights = lock(&self.flights);
        if wanted.is_awaited() {
            return Some(wanted);
        }
        flights.remove(&wanted.value);
        None
    }

    /// In the cache. What is not cached is fetched again, so its errors are only logged.
    async fn keep(self: &Arc<Self>, value: Value, stored: Bytes) {
        let chunks = self.clone();
        let kept = tokio::task::spawn_blocking(move || {
            if let Err(error) = chunks.cache.put(&value, &stored) {
                tracing::warn!(%error, "a chunk is not cached");
            }
        });
        let _ = kept.await;
    }

    fn land(&self, wanted: &Wanted, outcome: Result<Bytes, ()>) {
        if let Ok(chunk) = &outcome {
            lock(&self.memory).put(wanted.value, chunk.clone());
        }
        self.arrive(wanted, outcome);
    }

    /// Tells who waits, and forgets the flight.
    fn arrive(&self, wanted: &Wanted, outcome: Result<Bytes, ()>) {
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
mod tests;
