//! Which images, and which of their layers, are lived on. One that is in use is not removed; one that a
//! request has just looked up neither.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    sandboxes: u32,
    /// Requests that have resolved it and not made their sandboxes yet.
    requests: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Sandbox,
    Request,
}

/// Counts by digest.
#[derive(Default)]
pub(crate) struct Uses {
    counts: Mutex<HashMap<String, Count>>,
}

/// A use of some images, until it is dropped.
pub(crate) struct Use {
    uses: Arc<Uses>,
    digests: Vec<String>,
    user: User,
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts each digest of images and layers once.
    pub(crate) fn hold(self: &Arc<Self>, images: &[String], layers: &[String], user: User) -> Use {
        let digests: BTreeSet<String> = images.iter().chain(layers).cloned().collect();
        let digests: Vec<String> = digests.into_iter().collect();
        let mut counts = self.lock();
        for digest in &digests {
            let count = counts.entry(digest.clone()).or_default();
            match user {
                User::Sandbox => count.sandboxes += 1,
                User::Request => count.requests += 1,
            }
        }
        drop(counts);
        Use { uses: self.clone(), digests, user }
    }

    /// Sandboxes that live on it.
    pub(crate) fn sandboxes(&self, digest: &str) -> u32 {
        self.lock().get(digest).map_or(0, |c| c.sandboxes)
    }
    /// Does anything keep it from being removed?
    pub(crate) fn contains(&self, digest: &str) -> bool {
        self.lock().contains_key(digest)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut counts = self.uses.lock();
        for digest in &self.digests {
            if let Some(count) = counts.get_mut(digest) {
                match self.user {
                    User::Sandbox => count.sandboxes -= 1,
                    User::Request => count.requests -= 1,
                }
                if count.sandboxes + count.requests == 0 {
                    counts.remove(digest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_and_given_back() {
        let uses = Arc::new(Uses::default());
        let both = ["a".to_owned(), "b".to_owned()];
        let request = uses.hold(&both[..1], &both, User::Request);
        let sandbox = uses.hold(&both[..1], &[], User::Sandbox);
        assert_eq!((uses.sandboxes("a"), uses.sandboxes("b")), (1, 0));
        assert!(uses.contains("b"));
        drop(request);
        assert!(uses.contains("a") && !uses.contains("b"));
        drop(sandbox);
        assert!(uses.lock().is_empty());
    }
}
