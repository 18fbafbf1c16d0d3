//! The queue before the runtime: so many creates at once, so many waiting, one more comes back later.

use std::sync::Arc;

use api::{Code, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// When a caller who found the queue full should come back.
const RETRY_AFTER_MS: u64 = 500;

pub(crate) struct Gate {
    /// Room for those at work and those who wait.
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

/// A place in the queue; dropping it leaves the queue.
pub(crate) struct Place {
    _place: OwnedSemaphorePermit,
    turns: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new(in_flight_max: usize, queued_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(in_flight_max.saturating_add(queued_max)));
        Self { places, turns: Arc::new(Semaphore::new(in_flight_max)) }
    }

    /// Errors: `no_capacity`.
    pub(crate) fn enter(&self) -> Result<Place> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Error::new(Code::NoCapacity, "this node has too many creates waiting")
                .retry_after_ms(RETRY_AFTER_MS)
        })?;
        Ok(Place { _place: place, turns: self.turns.clone() })
    }
}

impl Place {
    /// Waits for its turn; the turn ends when the answer is dropped. None: the node is torn down.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_and_places_are_bounded_and_given_back() {
        let gate = Gate::new(1, 1);
        let (first, second) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert_eq!(gate.enter().err().map(|e| e.code), Some(Code::NoCapacity));
        let turn = first.turn().await.unwrap();
        assert!(futures_util::FutureExt::now_or_never(second.turn()).is_none());
        drop((first, turn));
        drop(second.turn().await.unwrap());
        gate.enter().unwrap();
    }
}
