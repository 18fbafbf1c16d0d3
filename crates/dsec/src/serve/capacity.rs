//! What the node gives away: its own memory and cores, oversold as usual, with what the configuration says over that.

use std::fs;

use anyhow::Context;
use edge::Capacity;
use serde::{Deserialize, Serialize};

/// `[capacity]` of the configuration; what it leaves out is the node's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CapacityPart {
    memory_bytes_max: Option<u64>,
    memory_oversell_percent: Option<u32>,
    cpu_millis_max: Option<u64>,
    cpu_oversell_percent: Option<u32>,
    pids_max: Option<u64>,
    sandboxes_max: Option<u32>,
}

impl CapacityPart {
    fn over(&self, node: Capacity) -> Capacity {
        Capacity {
            memory_bytes_max: self.memory_bytes_max.unwrap_or(node.memory_bytes_max),
            memory_oversell_percent: self.memory_oversell_percent.unwrap_or(node.memory_oversell_percent),
            cpu_millis_max: self.cpu_millis_max.unwrap_or(node.cpu_millis_max),
            cpu_oversell_percent: self.cpu_oversell_percent.unwrap_or(node.cpu_oversell_percent),
            pids_max: self.pids_max.unwrap_or(node.pids_max),
            sandboxes_max: self.sandboxes_max.unwrap_or(node.sandboxes_max),
        }
    }

    /// Errors: a value that is out of bounds.
    pub(crate) fn capacity(&self) -> anyhow::Result<Capacity> {
        let capacity = self.over(of_node()?);
        capacity.validate().context("capacity")?;
        Ok(capacity)
    }
}

fn of_node() -> anyhow::Result<Capacity> {
    let memory = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let kib = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let cores = std::thread::available_parallelism().context("the number of cores")?;
    let cores = u32::try_from(cores.get()).context("the number of cores")?;
    Ok(Capacity::of_node(kib.context("/proc/meminfo says no MemTotal")? * 1024, cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_the_nodes() {
        let part: CapacityPart = toml::from_str("sandboxes_max = 7").unwrap();
        let capacity = part.capacity().unwrap();
        assert_eq!(capacity.sandboxes_max, 7);
        assert_eq!(capacity.memory_bytes_max, of_node().unwrap().memory_bytes_max);
        let zero: CapacityPart = toml::from_str("pids_max = 0").unwrap();
        assert!(format!("{:#}", zero.capacity().unwrap_err()).contains("pids_max"));
        assert!(toml::from_str::<CapacityPart>("pids = 1").is_err());
    }
}
