//! Keys that were found lately, so that a request costs no query.
//!
//! Keyed by digest: what can be learnt from the time of a lookup is about a hash of 256 random bits, which helps nobody.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use crate::{Principal, key::Digest};

/// How long a revocation by another process may go unseen.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(10);
const ENTRIES_MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct Cache(RwLock<Entries>);

#[derive(Default)]
struct Entries {
    /// Grows with each revocation: what was read from the store before it is not taken in after it.
    generation: u64,
    found: HashMap<Digest, (Instant, Principal)>,
}

impl Cache {
    pub(crate) fn get(&self, digest: &Digest) -> Option<Principal> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (since, principal) = entries.found.get(digest)?;
        (since.elapsed() < AGE_MAX).then(|| principal.clone())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).generation
    }

    pub(crate) fn put(&self, digest: Digest, principal: Principal, generation: u64) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if entries.generation != generation {
            return;
        }
        if entries.found.len() >= ENTRIES_MAX {
            entries.found.clear();
        }
        entries.found.insert(digest, (Instant::now(), principal));
    }

    pub(crate) fn clear(&self) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        entries.generation += 1;
        entries.found.clear();
    }
}
