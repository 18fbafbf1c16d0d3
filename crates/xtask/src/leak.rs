//! What a run of DSec may leave on a machine, listed before and after: mounts, cgroups, loop devices, processes,
//! network namespaces.
//!
//! Each thing is one line of text; a leak is a line that is there after and was not before. The kernel takes some of
//! them away a moment later than the process that held them, so `assert_none_since` looks again for a while.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// The names of our processes.
const PROCESSES: &[&str] = &["dsec", "aether", "forge", "dsec-forge", "dsec-init"];
/// How long the kernel may take to be done.
const SETTLE: Duration = Duration::from_secs(10);

/// Things of this machine, one line each.
#[derive(Debug, Clone, Default)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    pub fn take() -> Self {
        let mut lines = BTreeSet::new();
        lines.extend(mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
        lines.extend(cgroups(Path::new("/sys/fs/cgroup"), 0));
        lines.extend(loops());
        lines.extend(processes());
        lines.extend(named_netns());
        Self(lines)
    }

    /// The same without what belongs to nodes with data outside `scratch`, which come and go beside us.
    pub fn beside_others(scratch: &Path) -> Self {
        let scratch = scratch.to_string_lossy();
        let others = other_slots(&scratch);
        let mine = |line: &String| {
            let of_slot = slot_in(line).is_some_and(|slot| others.contains(slot));
            let of_node = ["process ", "mount ", "loop "].iter().any(|kind| line.starts_with(kind));
            !of_slot && (!of_node || line.contains(&*scratch))
        };
        Self(Self::take().0.into_iter().filter(mine).collect())
    }

    /// What is here and was not in `before`.
    pub fn since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// How many of each kind, for a report.
    pub fn counts(&self) -> String {
        let count = |kind: &str| self.0.iter().filter(|l| l.starts_with(kind)).count();
        let kinds = ["mount", "cgroup", "loop", "process", "netns"];
        kinds.map(|kind| format!("{kind} {}", count(kind))).join(", ")
    }
}

/// Fails if something is here that was not in `before`, with a list of it.
pub fn assert_none_since(before: &Snapshot) -> Result<()> {
    assert_none(before, Snapshot::take)
}

/// `take` is what `before` was taken by.
pub fn assert_none(before: &Snapshot, take: impl Fn() -> Snapshot) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = take().since(before);
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > SETTLE {
            bail!("left behind:\n  {}", left.join("\n  "));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Slots that nodes with data elsewhere hold.
fn other_slots(scratch: &str) -> BTreeSet<String> {
    let entries = fs::read_dir("/run/dsec/slots").into_iter().flatten().flatten();
    let foreign = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path()).is_ok_and(|data| !data.is_empty() && !data.starts_with(scratch))
    };
    entries.filter(foreign).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The slot that a cgroup is of.
fn slot_in(line: &str) -> Option<&str> {
    line.split("/dsec/s").nth(1)?.split('/').next()
}

fn mounts(mountinfo: &str) -> Vec<String> {
    let line = |l: &str| {
        let (left, right) = l.split_once(" - ")?;
        Some(format!("mount {} ({})", left.split(' ').nth(4)?, right.split(' ').next()?))
    };
    mountinfo.lines().filter_map(line).collect()
}

/// Directories named `dsec` (and all below) of every hierarchy.
fn cgroups(dir: &Path, depth: usize) -> Vec<String> {
    // /sys/fs/cgroup/<hierarchy>/dsec/<edge>/<husk>/<part>/<exec>
    const DEPTH_MAX: usize = 7;
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let path = entry.path();
        let ours = path.components().any(|c| c.as_os_str().to_string_lossy().starts_with("dsec"));
        if ours {
            found.push(format!("cgroup {}", path.display()));
        }
        if depth < if ours { DEPTH_MAX } else { 2 } {
            found.extend(cgroups(&path, depth + 1));
        }
    }
    found
}

fn loops() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let backing = |e: fs::DirEntry| {
        let file = fs::read_to_string(e.path().join("loop/backing_file")).ok()?;
        Some(format!("loop {} {}", e.file_name().to_string_lossy(), file.trim_end()))
    };
    entries.flatten().filter_map(backing).collect()
}

fn processes() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ours = |e: fs::DirEntry| {
        let pid: u32 = e.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(e.path().join("comm")).ok()?;
        if !PROCESSES.contains(&comm.trim_end()) {
            return None;
        }
        let line = fs::read(e.path().join("cmdline")).unwrap_or_default();
        Some(format!("process {pid} {}", String::from_utf8_lossy(&line).replace('\0', " ").trim_end()))
    };
    entries.flatten().filter_map(ours).collect()
}

/// Namespaces that a process holds, other than by our names, go with it; a name pins one for good.
fn named_netns() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    entries.flatten().map(|e| format!("netns {}", e.file_name().to_string_lossy())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_named_by_place_and_type() {
        let text = "36 35 98:0 /r /mnt/x rw,noatime shared:1 - ext4 /dev/root rw\nnonsense\n";
        assert_eq!(mounts(text), ["mount /mnt/x (ext4)"]);
    }

    #[test]
    fn a_cgroup_names_its_slot() {
        assert_eq!(slot_in("cgroup /sys/fs/cgroup/unified/dsec/s17/box/x3"), Some("17"));
        assert_eq!(slot_in("cgroup /sys/fs/cgroup/unified/dsec"), None);
    }

    #[test]
    fn only_what_is_new_is_a_leak() {
        let before = Snapshot(BTreeSet::from(["mount /a (x)".into(), "loop loop0 /f".into()]));
        let after = Snapshot(BTreeSet::from(["mount /a (x)".into(), "process 7 aether".into()]));
        assert_eq!(after.since(&before), ["process 7 aether"]);
        assert_eq!(after.counts(), "mount 1, cgroup 0, loop 0, process 1, netns 0");
    }

    #[test]
    fn a_cgroup_of_ours_is_seen() {
        let dir = std::env::temp_dir().join(format!("xtask-leak-{}", std::process::id()));
        fs::create_dir_all(dir.join("unified/dsec/e1/h1")).unwrap();
        fs::create_dir_all(dir.join("unified/other")).unwrap();
        let found = cgroups(&dir, 0);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
