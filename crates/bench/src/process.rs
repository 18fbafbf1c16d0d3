//! What /proc tells of processes and of the kernel's memory.

use std::{
    collections::{HashMap, HashSet},
    fs,
};

use anyhow::{Context, Result};

/// A number of kibibytes in a file of `Name:   123 kB` lines.
fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// Bytes resident in a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(kib(&status, "VmRSS").context("no VmRSS")? * 1024)
}

/// A process and all that it has started, by name.
pub fn tree(root: u32) -> Result<HashMap<u32, String>> {
    let mut parents = HashMap::new();
    let mut names = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        // One that has ended meanwhile is not of interest.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((before, after)) = stat.rsplit_once(')') else { continue };
        let name = before.split_once('(').map_or("", |(_, name)| name);
        let Some(parent) = after.split_whitespace().nth(1).and_then(|p| p.parse::<u32>().ok()) else {
            continue;
        };
        parents.insert(pid, parent);
        names.insert(pid, name.to_owned());
    }
    let mut found = HashSet::from([root]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(*parent) && !found.contains(*pid))
            .map(|(p, _)| *p)
            .collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    names.retain(|pid, _| found.contains(pid));
    Ok(names)
}

/// Memory by where it is, in bytes.
#[derive(Debug, Clone, Default)]
pub struct Memory(pub Vec<(&'static str, f64)>);

impl Memory {
    /// Of the whole kernel, and of the processes below `root`: these are exact, the kernel's counters are everybody's.
    pub fn now(root: u32) -> Result<Self> {
        let mut pss = HashMap::<&'static str, u64>::new();
        for (pid, name) in tree(root)? {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
            let category = match name.as_str() {
                "init" => "pss_init",
                "aether" | "memfd:dsec" => "pss_aether",
                _ => "pss_server",
            };
            *pss.entry(category).or_default() += kib(&text, "Pss").unwrap_or(0);
        }
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let mut all: Vec<(&'static str, f64)> =
            pss.into_iter().map(|(category, kib)| (category, (kib * 1024) as f64)).collect();
        for (category, name) in [
            ("slab", "Slab"),
            ("kernel_stacks", "KernelStack"),
            ("page_tables", "PageTables"),
            ("percpu", "Percpu"),
        ] {
            let kib = kib(&meminfo, name).with_context(|| format!("no {name} in /proc/meminfo"))?;
            all.push((category, (kib * 1024) as f64));
        }
        all.sort_by_key(|(category, _)| *category);
        Ok(Self(all))
    }

    /// What came on top of `before`.
    pub fn since(&self, before: &Self) -> Vec<(&'static str, f64)> {
        let was =
            |category: &str| before.0.iter().find(|(c, _)| *c == category).map_or(0.0, |(_, bytes)| *bytes);
        self.0.iter().map(|(category, bytes)| (*category, bytes - was(category))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_holds_its_root_and_its_children_only() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let found = tree(std::process::id()).unwrap();
        assert!(found.contains_key(&std::process::id()) && found.contains_key(&child.id()));
        assert!(!found.contains_key(&1));
        assert!(resident_bytes(child.id()).unwrap() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        assert_eq!(kib("SlabX:  1 kB\nSlab:  25 kB\n", "Slab"), Some(25));
        assert_eq!(kib("Slab: x kB\n", "Slab"), None);
    }
}
