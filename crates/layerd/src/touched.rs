//! Which chunks of a layer were read here, in the order of their first read: what becomes its trace in the store.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use storage::trace::CHUNKS_MAX;

/// Reads that go on for so long are no start: what there is, is told.
const STARTING_MAX: Duration = Duration::from_secs(10 * 60);

/// Bounded by `CHUNKS_MAX`: what comes later is not noted.
#[derive(Default)]
pub struct Touched {
    seen: HashSet<u32>,
    order: Vec<u32>,
    /// The first and the last note.
    times: Option<(Instant, Instant)>,
    is_told: bool,
}

impl Touched {
    /// A read of chunks `first..=last`.
    pub fn note(&mut self, first: usize, last: usize, now: Instant) {
        if self.is_told {
            return;
        }
        for index in first..=last {
            let Ok(index) = u32::try_from(index) else { return };
            if self.order.len() < CHUNKS_MAX && self.seen.insert(index) {
                self.order.push(index);
                let first = self.times.map_or(now, |(first, _)| first);
                self.times = Some((first, now));
            }
        }
    }

    /// Once: all of it, when nothing new has come for `idle`.
    pub fn take_due(&mut self, idle: Duration, now: Instant) -> Option<Vec<u32>> {
        let (first, last) = self.times?;
        let is_due = now.duration_since(last) >= idle || now.duration_since(first) >= STARTING_MAX;
        if self.is_told || !is_due {
            return None;
        }
        self.is_told = true;
        self.seen = HashSet::new();
        Some(std::mem::take(&mut self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_touches_are_told_once_in_their_order() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut touched = Touched::default();
        assert!(touched.take_due(second, start).is_none());
        touched.note(5, 7, start);
        touched.note(2, 6, start + second);
        assert!(touched.take_due(second, start + second).is_none(), "something came just now");
        touched.note(5, 5, start + second * 2);
        assert_eq!(touched.take_due(second, start + second * 2).unwrap(), [5, 6, 7, 2, 3, 4]);
        touched.note(9, 9, start + second * 3);
        assert!(touched.take_due(second, start + second * 9).is_none());
    }

    #[test]
    fn it_has_an_end() {
        let start = Instant::now();
        let mut touched = Touched::default();
        touched.note(0, CHUNKS_MAX * 2, start);
        assert_eq!(touched.seen.len(), CHUNKS_MAX);
        touched.note(CHUNKS_MAX * 3, CHUNKS_MAX * 3, start + STARTING_MAX);
        assert_eq!(touched.take_due(STARTING_MAX * 2, start + STARTING_MAX).unwrap().len(), CHUNKS_MAX);
    }
}
