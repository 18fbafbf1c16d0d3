//! Quota: bounds of what the sandboxes of a project, and of those below it, may take together.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{Kind, SandboxSpec};

const COUNT: usize = 9;

/// What is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Sandboxes that live, of all kinds.
    Sandboxes,
    Containers,
    MicroVms,
    FullVms,
    FnCalls,
    CpuMillis,
    MemoryBytes,
    DiskBytes,
    /// A rate, of no amount: sandboxes that may be created in a second, a second's worth at once. A batch waits for its first
    /// sandbox and then lets others wait for all of it.
    CreatesPerS,
}

impl Dimension {
    pub const ALL: [Self; COUNT] = [
        Self::Sandboxes,
        Self::Containers,
        Self::MicroVms,
        Self::FullVms,
        Self::FnCalls,
        Self::CpuMillis,
        Self::MemoryBytes,
        Self::DiskBytes,
        Self::CreatesPerS,
    ];

    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandboxes => "sandboxes",
            Self::Containers => "containers",
            Self::MicroVms => "micro_vms",
            Self::FullVms => "full_vms",
            Self::FnCalls => "fn_calls",
            Self::CpuMillis => "cpu_millis",
            Self::MemoryBytes => "memory_bytes",
            Self::DiskBytes => "disk_bytes",
            Self::CreatesPerS => "creates_per_s",
        }
    }

    fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::Container => Self::Containers,
            Kind::MicroVm => Self::MicroVms,
            Kind::FullVm => Self::FullVms,
            Kind::FnCall => Self::FnCalls,
        }
    }

    fn place(self) -> usize {
        self as usize
    }
}

/// Bounds; what is absent has none of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "BTreeMap<Dimension, u64>", into = "BTreeMap<Dimension, u64>")]
#[schemars(with = "BTreeMap<Dimension, u64>")]
pub struct Quota([Option<u64>; COUNT]);

impl Quota {
    pub const NONE: Self = Self([None; COUNT]);

    pub fn get(&self, dimension: Dimension) -> Option<u64> {
        self.0[dimension.place()]
    }

    #[must_use]
    pub fn with(mut self, dimension: Dimension, bound: impl Into<Option<u64>>) -> Self {
        self.0[dimension.place()] = bound.into();
        self
    }

    /// The tighter of both, in each dimension.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let tighter = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self(std::array::from_fn(|at| tighter(self.0[at], other.0[at])))
    }

    /// The first dimension in which `self` is wider than `other` allows.
    pub fn wider_than(&self, other: &Self) -> Option<Dimension> {
        let wider = |dimension: &Dimension| match (self.get(*dimension), other.get(*dimension)) {
            (Some(mine), Some(theirs)) => mine > theirs,
            // No bound of its own: the other's holds.
            _ => false,
        };
        Dimension::ALL.into_iter().find(wider)
    }

    /// The first dimension that does not hold `used` and `more` together.
    pub fn exceeded(&self, used: &Amount, more: &Amount) -> Option<Dimension> {
        let over = |dimension: &Dimension| {
            let wanted = used.get(*dimension).saturating_add(more.get(*dimension));
            more.get(*dimension) > 0 && self.get(*dimension).is_some_and(|bound| wanted > bound)
        };
        Dimension::ALL.into_iter().find(over)
    }
}

impl From<BTreeMap<Dimension, u64>> for Quota {
    fn from(bounds: BTreeMap<Dimension, u64>) -> Self {
        bounds.into_iter().fold(Self::NONE, |quota, (dimension, bound)| quota.with(dimension, bound))
    }
}

impl From<Quota> for BTreeMap<Dimension, u64> {
    fn from(quota: Quota) -> Self {
        Dimension::ALL.into_iter().filter_map(|one| Some((one, quota.get(one)?))).collect()
    }
}

/// What some sandboxes take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "BTreeMap<Dimension, u64>", into = "BTreeMap<Dimension, u64>")]
#[schemars(with = "BTreeMap<Dimension, u64>")]
pub struct Amount([u64; COUNT]);

impl Amount {
    /// Of `count` sandboxes alike. Saturates.
    pub fn of(spec: &SandboxSpec, count: u64) -> Self {
        let mut amount = Self::default();
        for (dimension, each) in [
            (Dimension::Sandboxes, 1),
            (Dimension::of_kind(spec.kind), 1),
            (Dimension::CpuMillis, spec.cpu_millis_max.into()),
            (Dimension::MemoryBytes, spec.memory_bytes_max),
            (Dimension::DiskBytes, spec.disk_bytes_max),
        ] {
            amount.0[dimension.place()] = count.saturating_mul(each);
        }
        amount
    }

    pub fn get(&self, dimension: Dimension) -> u64 {
        self.0[dimension.place()]
    }

    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Saturates.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_add(other.0[at])))
    }

    /// Not below nothing.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(other.0[at])))
    }
}

impl From<BTreeMap<Dimension, u64>> for Amount {
    fn from(amounts: BTreeMap<Dimension, u64>) -> Self {
        let mut amount = Self::default();
        for (dimension, value) in amounts {
            amount.0[dimension.place()] = value;
        }
        amount
    }
}

impl From<Amount> for BTreeMap<Dimension, u64> {
    fn from(amount: Amount) -> Self {
        let some = Dimension::ALL.into_iter().filter(|one| amount.get(*one) > 0);
        some.map(|one| (one, amount.get(one))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_is_a_map_of_what_is_bounded() {
        let quota: Quota = serde_json::from_str(r#"{"sandboxes":10,"memory_bytes":1024}"#).unwrap();
        assert_eq!((quota.get(Dimension::Sandboxes), quota.get(Dimension::CpuMillis)), (Some(10), None));
        assert_eq!(serde_json::to_string(&quota).unwrap(), r#"{"sandboxes":10,"memory_bytes":1024}"#);
        assert!(serde_json::from_str::<Quota>(r#"{"sandboxen":1}"#).is_err());
        for dimension in Dimension::ALL {
            assert_eq!(serde_json::to_value(dimension).unwrap(), dimension.as_str());
        }
    }

    #[test]
    fn a_batch_takes_its_sandboxes_together() {
        let spec = SandboxSpec::new("debian");
        let amount = Amount::of(&spec, 3);
        assert_eq!((amount.get(Dimension::Sandboxes), amount.get(Dimension::Containers)), (3, 3));
        assert_eq!(amount.get(Dimension::MicroVms), 0);
        assert_eq!(amount.get(Dimension::MemoryBytes), 3 * spec.memory_bytes_max);
        let quota = Quota::NONE.with(Dimension::Containers, 5);
        assert_eq!(quota.exceeded(&amount, &Amount::of(&spec, 2)), None);
        assert_eq!(quota.exceeded(&amount, &amount), Some(Dimension::Containers));
        let shrunk = Quota::NONE.with(Dimension::Containers, 0);
        assert_eq!(shrunk.exceeded(&amount, &Amount::default()), None, "what is there stays");
        let huge = Amount::of(&SandboxSpec { memory_bytes_max: u64::MAX, ..spec }, 2);
        assert_eq!(huge.get(Dimension::MemoryBytes), u64::MAX);
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        prop::array::uniform9(prop::option::of(0..100_u64)).prop_map(Quota)
    }

    proptest! {
        #[test]
        fn both_is_never_wider_than_either(one in quotas(), two in quotas()) {
            let both = one.and(&two);
            prop_assert_eq!(both.wider_than(&one), None);
            prop_assert_eq!(both.wider_than(&two), None);
            prop_assert_eq!(both, two.and(&one));
            let json = serde_json::to_string(&both).unwrap();
            prop_assert_eq!(serde_json::from_str::<Quota>(&json).unwrap(), both);
        }
    }
}
