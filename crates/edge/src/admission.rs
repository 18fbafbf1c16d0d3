//! May one more sandbox come? The decision is a pure function of what is there and what is asked; what was granted
//! is held by a [`Reservation`], which gives it back when it is dropped.
//!
//! Memory and CPU are oversold: sandboxes rarely use all that they may. Counts are not.

use std::sync::{Arc, Mutex, PoisonError};

use api::{Code, Error, Result, spec::SandboxSpec};
use serde::{Deserialize, Serialize};

/// When a refused caller should come back. Sandboxes of agents live for minutes: sooner only makes noise.
const RETRY_AFTER_MS: u64 = 1000;

/// What the node gives away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    pub memory_bytes_max: u64,
    /// 100 sells what is there, 200 twice that.
    pub memory_oversell_percent: u32,
    pub cpu_millis_max: u64,
    pub cpu_oversell_percent: u32,
    pub pids_max: u64,
    pub sandboxes_max: u32,
}

impl Capacity {
    /// A node with that much memory and that many cores, with the usual overselling.
    pub fn of_node(memory_bytes: u64, cores: u32) -> Self {
        Self {
            memory_bytes_max: memory_bytes,
            memory_oversell_percent: 400,
            cpu_millis_max: u64::from(cores) * 1000,
            cpu_oversell_percent: 10_000,
            pids_max: 4 << 20,
            sandboxes_max: 4096,
        }
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        let percents = [
            ("memory_oversell_percent", self.memory_oversell_percent),
            ("cpu_oversell_percent", self.cpu_oversell_percent),
        ];
        for (field, value) in percents {
            if !(100..=100_000).contains(&value) {
                return Err(Error::invalid(format!("{field}: {value} is outside 100..=100000")));
            }
        }
        let positive = [
            ("memory_bytes_max", self.memory_bytes_max),
            ("cpu_millis_max", self.cpu_millis_max),
            ("pids_max", self.pids_max),
            ("sandboxes_max", self.sandboxes_max.into()),
        ];
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((field, _)) => Err(Error::invalid(format!("{field}: 0 leaves no room"))),
            None => Ok(()),
        }
    }

    /// What can be sold in all.
    fn sold(&self) -> Load {
        let percent = |value: u64, percent: u32| {
            (u128::from(value) * u128::from(percent) / 100).min(u128::from(u64::MAX)) as u64
        };
        Load {
            memory_bytes: percent(self.memory_bytes_max, self.memory_oversell_percent),
            cpu_millis: percent(self.cpu_millis_max, self.cpu_oversell_percent),
            pids: self.pids_max,
            sandboxes: self.sandboxes_max.into(),
        }
    }
}

/// Resources that are given away, or asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub memory_bytes: u64,
    pub cpu_millis: u64,
    pub pids: u64,
    pub sandboxes: u64,
}

impl Load {
    /// What one sandbox takes.
    pub fn of(spec: &SandboxSpec) -> Self {
        Self {
            memory_bytes: spec.memory_bytes_max,
            cpu_millis: spec.cpu_millis_max.into(),
            pids: spec.pids_max.into(),
            sandboxes: 1,
        }
    }

    fn parts(&self) -> [(&'static str, u64); 4] {
        [
            ("sandboxes", self.sandboxes),
            ("memory_bytes", self.memory_bytes),
            ("cpu_millis", self.cpu_millis),
            ("pids", self.pids),
        ]
    }

    fn add(&mut self, other: &Load) {
        self.memory_bytes += other.memory_bytes;
        self.cpu_millis += other.cpu_millis;
        self.pids += other.pids;
        self.sandboxes += other.sandboxes;
    }

    fn subtract(&mut self, other: &Load) {
        self.memory_bytes -= other.memory_bytes;
        self.cpu_millis -= other.cpu_millis;
        self.pids -= other.pids;
        self.sandboxes -= other.sandboxes;
    }
}

/// What the sandbox would take, if it may come. Errors: `no_capacity`, which names the resource that is
/// short; `invalid_argument` where it could never come.
pub fn plan_admission(capacity: &Capacity, load: &Load, spec: &SandboxSpec) -> Result<Load> {
    let ask = Load::of(spec);
    let all = capacity.sold();
    for (((what, asked), (_, used)), (_, sold)) in ask.parts().into_iter().zip(load.parts()).zip(all.parts())
    {
        if asked > sold {
            let message = format!("{what}: {asked} asked, and this node has {sold} in all");
            return Err(Error::invalid(message));
        }
        let free = sold.saturating_sub(used);
        if asked > free {
            let message = format!("this node is short of {what}: {asked} asked, {free} of {sold} free");
            return Err(Error::new(Code::NoCapacity, message).retry_after_ms(RETRY_AFTER_MS));
        }
    }
    Ok(ask)
}

/// The node's books.
pub(crate) struct Admission {
    capacity: Capacity,
    load: Mutex<Load>,
}

/// A share of the node, given back on drop.
pub(crate) struct Reservation {
    share: Load,
    books: Arc<Admission>,
}

impl Admission {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self { capacity, load: Mutex::default() }
    }

    /// Errors: `no_capacity`.
    pub(crate) fn reserve(self: &Arc<Self>, spec: &SandboxSpec) -> Result<Reservation> {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let share = plan_admission(&self.capacity, &load, spec)?;
        load.add(&share);
        Ok(Reservation { share, books: self.clone() })
    }

    /// For a sandbox that lives already: it counts, even over the brim.
    pub(crate) fn reserve_adopted(self: &Arc<Self>, spec: &SandboxSpec) -> Reservation {
        let share = Load::of(spec);
        self.load.lock().unwrap_or_else(PoisonError::into_inner).add(&share);
        Reservation { share, books: self.clone() }
    }

    pub(crate) fn load(&self) -> Load {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.books.load.lock().unwrap_or_else(PoisonError::into_inner).subtract(&self.share);
    }
}

#[cfg(test)]
mod tests {
    use api::limit;
    use proptest::prelude::*;

    use super::*;

    fn spec(memory_bytes_max: u64, cpu_millis_max: u32, pids_max: u32) -> SandboxSpec {
        SandboxSpec { memory_bytes_max, cpu_millis_max, pids_max, ..SandboxSpec::new("base") }
    }

    fn capacity() -> Capacity {
        Capacity {
            memory_bytes_max: 1 << 30,
            memory_oversell_percent: 200,
            cpu_millis_max: 2000,
            cpu_oversell_percent: 100,
            pids_max: 100,
            sandboxes_max: 3,
        }
    }

    #[test]
    fn the_short_resource_is_named_and_a_retry_suggested() {
        for (what, spec) in [
            ("memory_bytes", spec(2 << 30, 1000, 1)),
            ("cpu_millis", spec(1 << 20, 2000, 1)),
            ("pids", spec(1 << 20, 1000, 100)),
        ] {
            let e = plan_admission(&capacity(), &Load::of(&self::spec(1, 1, 1)), &spec).unwrap_err();
            assert_eq!(e.code, Code::NoCapacity);
            assert!(e.message.contains(what), "{e}");
            assert!(e.retry_after_ms.is_some());
        }
        // What could never come is refused for good, and asks nobody to try again.
        let e = plan_admission(&capacity(), &Load::default(), &spec((2 << 30) + 1, 1, 1)).unwrap_err();
        assert_eq!((e.code, e.retry_after_ms), (Code::InvalidArgument, None));
        let full = Load { sandboxes: 3, ..Load::default() };
        assert!(
            plan_admission(&capacity(), &full, &spec(1, 1, 1)).unwrap_err().message.contains("sandboxes")
        );
        plan_admission(&capacity(), &Load::default(), &spec(2 << 30, 2000, 100)).unwrap();
    }

    #[test]
    fn a_dropped_reservation_gives_all_back() {
        let books = Arc::new(Admission::new(capacity()));
        let asked = spec(limit::MEMORY_BYTES_DEFAULT, 1000, 10);
        let held: Vec<_> = (0..2).map(|_| books.reserve(&asked).unwrap()).collect();
        assert_eq!(books.reserve(&asked).err().map(|e| e.code), Some(Code::NoCapacity), "no CPU left");
        let adopted = books.reserve_adopted(&asked);
        assert_eq!(books.load().cpu_millis, 3000, "what lives counts, over the brim");
        drop((held, adopted));
        assert_eq!(books.load(), Load::default());
    }

    proptest! {
        #[test]
        fn never_more_is_granted_than_is_sold(asks in proptest::collection::vec((1u64..1 << 31, 1u32..3000, 1u32..200), 0..40)) {
            let books = Arc::new(Admission::new(capacity()));
            let held: Vec<_> = asks.iter().filter_map(|(m, c, p)| books.reserve(&spec(*m, *c, *p)).ok()).collect();
            let load = books.load();
            prop_assert!(load.memory_bytes <= 2 << 30 && load.cpu_millis <= 2000 && load.pids <= 100);
            prop_assert_eq!(load.sandboxes, held.len() as u64);
            prop_assert!(held.len() <= 3);
        }
    }
}
