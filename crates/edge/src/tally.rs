//! The tally: what lives here, by project, and which reservations of quota are worked on or finished.
//!
//! Invariant: a sandbox is in a tally from the one on that says its reservation is finished; before, the reservation
//! stands for it. So work ends, and a tally is taken, under one lock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::iam::{Amount, Tally, TallyQuery};

use crate::{clock::now_ms, registry::Registry};

/// Those that nobody has taken in. One that falls out ends by itself, somewhat later.
const FINISHED_MAX: usize = 100_000;

/// The books of one life of the edge.
pub(crate) struct Tallies {
    started_ms: u64,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    sequence: u64,
    working: BTreeSet<String>,
    /// Each with the number of the first tally that says so; oldest first.
    finished: VecDeque<(String, u64)>,
}

/// A reservation that is worked on, until it is dropped.
pub(crate) struct Working {
    tallies: Arc<Tallies>,
    reservation: String,
}

impl Default for Tallies {
    fn default() -> Self {
        Self { started_ms: now_ms(), books: Mutex::default() }
    }
}

impl Tallies {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of an earlier life, in which it did not come to say so: what was made of it is in the tallies from now on.
    pub(crate) fn finished_before(&self, reservations: BTreeSet<String>) {
        self.lock().finished.extend(reservations.into_iter().take(FINISHED_MAX).map(|one| (one, 1)));
    }

    pub(crate) fn work(self: &Arc<Self>, reservation: String) -> Working {
        self.lock().working.insert(reservation.clone());
        Working { tallies: self.clone(), reservation }
    }

    /// See `api::arrow::Edge::tally`.
    pub(crate) fn take(&self, query: TallyQuery, registry: &Registry) -> Tally {
        let mut books = self.lock();
        if query.started_ms == self.started_ms {
            books.finished.retain(|(_, since)| *since > query.sequence);
        }
        books.sequence += 1;
        let mut projects: BTreeMap<String, Amount> = BTreeMap::new();
        for sandbox in registry.all() {
            if sandbox.reservation.as_ref().is_some_and(|one| books.working.contains(one)) {
                continue;
            }
            let sum = projects.entry(sandbox.project.clone()).or_default();
            *sum = sum.plus(&Amount::of(&sandbox.spec, 1));
        }
        Tally {
            started_ms: self.started_ms,
            sequence: books.sequence,
            projects: projects.into_iter().collect(),
            working: books.working.iter().cloned().collect(),
            finished: books.finished.iter().map(|(reservation, _)| reservation.clone()).collect(),
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut books = self.tallies.lock();
        books.working.remove(&self.reservation);
        let next = books.sequence + 1;
        books.finished.push_back((std::mem::take(&mut self.reservation), next));
        if books.finished.len() > FINISHED_MAX {
            books.finished.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_finished_is_told_until_it_is_taken_in() {
        let (tallies, registry) = (Arc::new(Tallies::default()), Registry::default());
        tallies.finished_before(["rv-0".to_owned()].into());
        let take = |query| tallies.take(query, &registry);
        let (one, two) = (tallies.work("rv-1".into()), tallies.work("rv-2".into()));
        let before = take(TallyQuery::default());
        assert_eq!(
            (before.working, before.finished),
            (vec!["rv-1".to_owned(), "rv-2".to_owned()], vec!["rv-0".to_owned()])
        );
        drop(one);
        let first = take(TallyQuery { started_ms: before.started_ms, sequence: before.sequence });
        assert_eq!((first.working, first.finished), (vec!["rv-2".to_owned()], vec!["rv-1".to_owned()]));
        drop(two);
        let again = take(TallyQuery { started_ms: 1, sequence: u64::MAX });
        assert_eq!(again.finished, ["rv-1", "rv-2"], "another life's word");
        let taken = TallyQuery { started_ms: first.started_ms, sequence: first.sequence };
        assert_eq!(take(taken).finished, ["rv-2"]);
        let taken = TallyQuery { started_ms: again.started_ms, sequence: again.sequence };
        assert_eq!(take(taken).finished, Vec::<String>::new());
    }
}
