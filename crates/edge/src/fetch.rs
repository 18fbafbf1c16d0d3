//! Images that are named and not here are looked for in the store: once at a time each, however many ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{Code, Error, Result};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, join_all},
};
use tokio::sync::Semaphore;

use crate::node::Parts;

/// For all of an image; a node that fetches eagerly may have gigabytes to bring.
const FETCH_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Fetches at once: each has a thread.
const FETCHES_IN_FLIGHT: usize = 8;

type Flight = Shared<BoxFuture<'static, Result<()>>>;

/// Fetches under way, by reference.
pub(crate) struct Fetches {
    flights: Mutex<HashMap<String, Flight>>,
    places: Semaphore,
}

impl Default for Fetches {
    fn default() -> Self {
        Self { flights: Mutex::default(), places: Semaphore::new(FETCHES_IN_FLIGHT) }
    }
}

impl Fetches {
    fn flights(&self) -> std::sync::MutexGuard<'_, HashMap<String, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fetches those of `references` that the catalogue lacks and the store has. One that neither has is left for the
/// look-up to complain about. Errors: `no_capacity` where the store cannot be asked, `internal` where what it has is
/// damaged.
pub(crate) async fn ensure(parts: &Arc<Parts>, references: impl IntoIterator<Item = &str>) -> Result<()> {
    if parts.layers.shared().is_none() {
        return Ok(());
    }
    let is_missing =
        |reference: &&str| parts.layers.inspect(reference).is_err_and(|e| e.code == Code::NotFound);
    // Side by side: each is some round trips to the store.
    let missing = references.into_iter().filter(is_missing).map(|reference| fetch_once(parts, reference));
    join_all(missing.collect::<Vec<_>>()).await.into_iter().collect()
}

#[tracing::instrument(level = "debug", name = "edge.fetch", skip(parts))]
async fn fetch_once(parts: &Arc<Parts>, reference: &str) -> Result<()> {
    let flight = {
        let mut flights = parts.fetches.flights();
        flights.entry(reference.to_owned()).or_insert_with(|| begin(parts, reference)).clone()
    };
    match flight.await {
        Err(error) if error.code == Code::NotFound => Ok(()),
        done => done,
    }
}

/// A fetch goes on when who asked has gone: large layers take longer than a create may, and who comes next waits for the
/// rest and not for all of it again.
fn begin(parts: &Arc<Parts>, reference: &str) -> Flight {
    let (parts, reference) = (parts.clone(), reference.to_owned());
    let task = tokio::spawn(async move {
        let done = fetch(&parts, &reference).await;
        // Whoever asks from now on asks the store anew.
        parts.fetches.flights().remove(&reference);
        done
    });
    let done =
        task.map(|done| done.unwrap_or_else(|_| Err(Error::internal("a fetch ended before its time"))));
    done.boxed().shared()
}

async fn fetch(parts: &Arc<Parts>, reference: &str) -> Result<()> {
    let _place = parts.fetches.places.acquire().await.map_err(|_| Error::internal("no place to fetch"))?;
    let (layers, named) = (parts.layers.clone(), reference.to_owned());
    let fetching = tokio::task::spawn_blocking(move || match layers.shared() {
        Some(store) => store.fetch(&named),
        None => Ok(()),
    });
    let fetched = tokio::time::timeout(FETCH_WITHIN, fetching).await;
    let fetched = fetched.map_err(|_| {
        Error::new(Code::DeadlineExceeded, format!("`{reference}` did not come from the store in time"))
    })?;
    fetched.map_err(|error| {
        tracing::error!(%error, "fetch: the catalogue panicked");
        Error::internal("the catalogue failed")
    })?
}
