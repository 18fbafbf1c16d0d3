//! All that an edge is told at its start, as one validated value.

use std::path::{Path, PathBuf};

use api::{EdgeId, Error, Result, limit};
use serde::{Deserialize, Serialize};

use crate::admission::Capacity;

/// See [`EdgeConfig::new`] for the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeConfig {
    pub edge: EdgeId,
    /// One file for each sandbox that lives.
    pub ledger_dir: PathBuf,
    /// One directory for each sandbox with output to remember.
    pub spool_dir: PathBuf,
    /// What is counted of images.
    pub usage_file: PathBuf,
    /// The images that wait for the store.
    pub publish_file: PathBuf,
    pub capacity: Capacity,
    /// Creates that the runtime works on at once: more only makes each of them slower.
    pub creates_in_flight_max: usize,
    /// Creates that wait for their turn; one more is told to come back later.
    pub creates_queued_max: usize,
    /// Sandboxes of one request that are made at once.
    pub batch_in_flight_max: usize,
}

impl EdgeConfig {
    /// The defaults for `capacity`, with everything under `data`.
    pub fn new(edge: EdgeId, data: &Path, capacity: Capacity) -> Self {
        Self {
            edge,
            ledger_dir: data.join("run/ledger"),
            spool_dir: data.join("spool"),
            usage_file: data.join("usage.json"),
            publish_file: data.join("publish.json"),
            capacity,
            creates_in_flight_max: 16,
            creates_queued_max: 4096,
            batch_in_flight_max: 8,
        }
    }

    /// Errors: `invalid_argument` with the field's name.
    pub fn validate(&self) -> Result<()> {
        let counts = [
            ("creates_in_flight_max", self.creates_in_flight_max),
            ("creates_queued_max", self.creates_queued_max),
            ("batch_in_flight_max", self.batch_in_flight_max),
        ];
        for (field, value) in counts {
            if !(1..=limit::CREATE_COUNT_MAX as usize).contains(&value) {
                return Err(Error::invalid(format!(
                    "{field}: {value} is outside 1..={}",
                    limit::CREATE_COUNT_MAX
                )));
            }
        }
        if self.ledger_dir == self.spool_dir {
            return Err(Error::invalid("ledger_dir, spool_dir: the same directory cannot be both"));
        }
        self.capacity.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_fields_are_named() {
        let good = EdgeConfig::new("e1".parse().unwrap(), Path::new("/d"), Capacity::of_node(1 << 30, 2));
        good.validate().unwrap();
        for (field, bad) in [
            ("batch_in_flight_max", EdgeConfig { batch_in_flight_max: 0, ..good.clone() }),
            ("creates_queued_max", EdgeConfig { creates_queued_max: usize::MAX, ..good.clone() }),
            ("ledger_dir", EdgeConfig { ledger_dir: "/x".into(), spool_dir: "/x".into(), ..good.clone() }),
            ("memory_oversell_percent", {
                let capacity = Capacity { memory_oversell_percent: 0, ..good.capacity.clone() };
                EdgeConfig { capacity, ..good.clone() }
            }),
        ] {
            assert!(bad.validate().unwrap_err().message.starts_with(field), "{field}");
        }
        let json = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<EdgeConfig>(&json).unwrap(), good);
    }
}
