//! Images that are named and not here are looked for in the store: once at a time each, however many ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{Code, Error, Result};
use tokio::sync::{OnceCell, Semaphore};

use crate::node::Parts;

/// For all of an image; a node that fetches eagerly may have gigabytes to bring.
const FETCH_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Fetches at once: each has a thread.
const FETCHES_IN_FLIGHT: usize = 8;

type Flight = Arc<OnceCell<Result<()>>>;

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
    for reference in references {
        let is_missing = parts.layers.inspect(reference).is_err_and(|e| e.code == Code::NotFound);
        if is_missing {
            fetch_once(parts, reference).await?;
        }
    }
    Ok(())
}

#[tracing::instrument(level = "debug", name = "edge.fetch", skip(parts))]
async fn fetch_once(parts: &Arc<Parts>, reference: &str) -> Result<()> {
    let flight = parts.fetches.flights().entry(reference.to_owned()).or_default().clone();
    let done = flight.get_or_init(|| fetch(parts, reference)).await.clone();
    let mut flights = parts.fetches.flights();
    // Whoever asks from now on asks the store anew; another flight may have begun meanwhile.
    if flights.get(reference).is_some_and(|now| Arc::ptr_eq(now, &flight)) {
        flights.remove(reference);
    }
    match done {
        Err(error) if error.code == Code::NotFound => Ok(()),
        done => done,
    }
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
