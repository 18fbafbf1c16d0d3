//! What a node may leave on a machine: processes, mounts, cgroups, namespaces, loop devices, slots, links, files.
//!
//! Other nodes may run beside the test's, so a thing counts only where it is this node's: by its data directory, or by
//! a slot that this node holds or that nobody holds any more.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const SLOTS: &str = "/run/dsec/slots";
/// How long the kernel may take to be done with what a process held.
const SETTLE: Duration = Duration::from_secs(20);

/// The things of a data directory before its node existed.
pub struct Leak {
    data: PathBuf,
    before: BTreeSet<String>,
}

impl Leak {
    /// For the node that will live on `data`.
    pub fn snapshot(data: &Path) -> Self {
        Self { data: data.to_owned(), before: things(data) }
    }

    /// What is there now and was not before.
    pub fn left(&self) -> Vec<String> {
        things(&self.data).difference(&self.before).cloned().collect()
    }

    /// Errors: what is still there after a while.
    pub fn check(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() > SETTLE {
                bail!("left behind:\n  {}", left.join("\n  "));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The slots that this data directory holds.
pub fn slots(data: &Path) -> BTreeSet<u32> {
    held().into_iter().filter(|(_, by)| by == data).map(|(slot, _)| slot).collect()
}

fn held() -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(SLOTS).into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let slot = e.file_name().to_str()?.parse().ok()?;
            Some((slot, PathBuf::from(fs::read_to_string(e.path()).ok()?)))
        })
        .collect()
}

/// Every thing that is this node's, or nobody's and looks like a node's.
fn things(data: &Path) -> BTreeSet<String> {
    // Before the rest: a slot that another node claims meanwhile must not look like nobody's.
    let mut found: BTreeSet<String> =
        cgroups().into_iter().map(|(slot, line)| format!("{slot} {line}")).collect();
    found.extend(links().into_iter().map(|(slot, line)| format!("{slot} {line}")));
    found.extend(processes(data).into_iter().map(|(slot, line)| format!("{slot} {line}")));
    let held = held();
    let others: BTreeSet<String> =
        held.iter().filter(|(_, by)| by != data).map(|(slot, _)| slot.to_string()).collect();
    found.retain(|line| line.split(' ').next().is_none_or(|slot| !others.contains(slot)));
    found.extend(held.iter().filter(|(_, by)| by == data).map(|(slot, _)| format!("slot {slot}")));
    found.extend(mounts(data));
    found.extend(loops(data));
    found
}

pub(crate) fn slot_in(path: &str) -> Option<u32> {
    path.split("/dsec/s").nth(1)?.split(['/', '\n']).next()?.parse().ok()
}

fn cgroups() -> Vec<(u32, String)> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|e| e.path());
    hierarchies
        .chain([PathBuf::from("/sys/fs/cgroup")])
        .flat_map(|h| fs::read_dir(h.join("dsec")).into_iter().flatten().flatten())
        .filter_map(|e| {
            let path = e.path().to_string_lossy().into_owned();
            Some((slot_in(&path)?, format!("cgroup {path}")))
        })
        .collect()
}

fn links() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let name = e.file_name().into_string().ok()?;
            Some((name.strip_prefix("dsec")?.parse().ok()?, format!("link {name}")))
        })
        .collect()
}

/// Those in a slot's cgroup, each with its network namespace; and dsec, forge and aether of this data directory
/// (slot u32::MAX: nobody else's).
fn processes(data: &Path) -> Vec<(u32, String)> {
    let data = data.to_string_lossy();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let pid: u32 = e.file_name().to_str()?.parse().ok()?;
            let read = |name: &str| fs::read(e.path().join(name)).unwrap_or_default();
            let text = |name: &str| String::from_utf8_lossy(&read(name)).replace('\0', " ");
            let comm = text("comm");
            let net = fs::read_link(e.path().join("ns/net")).unwrap_or_default();
            let line = format!("process {pid} {} {}", comm.trim(), net.display());
            if let Some(slot) = slot_in(&text("cgroup")) {
                return Some((slot, line));
            }
            let ours = matches!(comm.trim(), "dsec" | "dsec-forge" | "dsec-layerd" | "aether" | "dsec-init");
            (ours && text("cmdline").contains(&*data)).then_some((u32::MAX, line))
        })
        .collect()
}

fn mounts(data: &Path) -> Vec<String> {
    let data = data.to_string_lossy();
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter(|l| l.contains(&*data)).map(|l| format!("mount {l}")).collect()
}

fn loops(data: &Path) -> Vec<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let file = fs::read_to_string(e.path().join("loop/backing_file")).ok()?;
            file.contains(&*data.to_string_lossy())
                .then(|| format!("loop {} {}", e.file_name().to_string_lossy(), file.trim_end()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_off_a_cgroup() {
        assert_eq!(slot_in("/sys/fs/cgroup/unified/dsec/s17/box/x3"), Some(17));
        assert_eq!(slot_in("0::/dsec/s5\n"), Some(5));
        assert_eq!(slot_in("/sys/fs/cgroup/unified/other"), None);
    }

    #[test]
    fn a_mount_of_ones_own_is_seen() {
        assert!(mounts(Path::new("/nowhere/testkit")).is_empty());
        assert!(!mounts(Path::new("/proc")).is_empty());
    }
}
