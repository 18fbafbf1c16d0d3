//! The host's view of what runs in a sandbox: found by a word of its command line that nothing else has.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A process of a sandbox, seen from the host.
#[derive(Debug, Clone)]
pub struct Seen {
    pub pid: u32,
    pub slot: u32,
}

/// Processes in a slot whose command line has exactly this argument.
pub fn with_argument(word: &str) -> Vec<Seen> {
    each(|pid, dir| {
        let line = fs::read(dir.join("cmdline")).ok()?;
        let has = line.split(|b| *b == 0).any(|argument| argument == word.as_bytes());
        Some(Seen { pid, slot: slot_of(dir)? }).filter(|_| has)
    })
}

/// Waits for one. Errors: none comes.
pub fn find(word: &str) -> Result<Seen> {
    let start = Instant::now();
    loop {
        if let Some(seen) = with_argument(word).into_iter().next() {
            return Ok(seen);
        }
        if start.elapsed() > Duration::from_secs(30) {
            bail!("no process has the argument `{word}`");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The agent of a slot.
pub fn agent_of(slot: u32) -> Result<u32> {
    let all = each(|pid, dir| {
        let line = fs::read(dir.join("cmdline")).ok()?;
        (line.starts_with(b"aether\0agents\0") && slot_of(dir)? == slot).then_some(pid)
    });
    all.first().copied().with_context(|| format!("slot {slot} has no agent"))
}

/// The forge of a data directory.
pub fn forge_of(data: &Path) -> Result<u32> {
    let all = each(|pid, dir| {
        let line = String::from_utf8_lossy(&fs::read(dir.join("cmdline")).ok()?).replace('\0', " ");
        let ours = line.contains("dsec-forge") && line.contains(&*data.to_string_lossy());
        (ours && slot_of(dir).is_none()).then_some(pid)
    });
    all.first().copied().context("no forge runs")
}

/// SIGKILL, and waits for the end.
pub fn kill9(pid: u32) -> Result<()> {
    kill_process(Pid::from_raw(pid as i32).context("pid")?, Signal::KILL)?;
    crate::node::wait_gone(pid)
}

/// The effective uid of a process.
pub fn uid_of(pid: u32) -> Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:")).context("no Uid")?;
    line.split_whitespace().nth(1).context("no Uid")?.parse().context("Uid")
}

fn slot_of(dir: &Path) -> Option<u32> {
    crate::leak::slot_in(&fs::read_to_string(dir.join("cgroup")).ok()?)
}

fn each<T>(mut of: impl FnMut(u32, &PathBuf) -> Option<T>) -> Vec<T> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| of(e.file_name().to_str()?.parse().ok()?, &e.path())).collect()
}
