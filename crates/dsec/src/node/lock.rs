//! One server for each data directory: `<data>/dsec.pid`, locked for the server's life by flock.
//!
//! The lock is the truth, the number in the file only a name for people and for `down`: a file that is left behind by
//! a crash is not locked, so it stops nobody.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// From a SIGKILL to the end of the last thread, which may be in the middle of a write.
const DYING_WITHIN: Duration = Duration::from_secs(10);

/// Held by the server; the lock goes with it, however it ends.
pub(crate) struct Lock {
    _file: File,
}

/// What holds the data directory.
pub(crate) enum Holder {
    Nobody,
    /// Its process id, as it says.
    Server(Pid),
}

fn path(data: &Path) -> PathBuf {
    data.join("dsec.pid")
}

impl Lock {
    /// Takes the data directory, which must exist. Errors: another server has it.
    pub(crate) fn acquire(data: &Path) -> anyhow::Result<Self> {
        let path = path(data);
        let at = || format!("the pid file {}", path.display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(at)?;
        if let Some(pid) = locked_by(&mut file).with_context(at)? {
            let pid = pid.map(|pid| format!(" (pid {})", pid.as_raw_nonzero())).unwrap_or_default();
            bail!("already running{pid} on {}", data.display());
        }
        file.set_len(0).with_context(at)?;
        file.rewind().with_context(at)?;
        writeln!(file, "{}", std::process::id()).with_context(at)?;
        Ok(Self { _file: file })
    }
}

/// Takes the lock (None), or says who has it. One that was killed keeps it until its last thread has ended: that is
/// waited for.
fn locked_by(file: &mut File) -> anyhow::Result<Option<Option<Pid>>> {
    let deadline = Instant::now() + DYING_WITHIN;
    while !try_lock(file)? {
        file.rewind()?;
        let pid = read_pid(file);
        if !pid.is_some_and(is_dying) || Instant::now() > deadline {
            return Ok(Some(pid));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

/// Whether its first thread has ended.
fn is_dying(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name, which may hold anything, ends at the last parenthesis; the state follows.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn try_lock(file: &File) -> anyhow::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn read_pid(file: &mut File) -> Option<Pid> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

/// Who has this data directory now.
pub(crate) fn holder(data: &Path) -> anyhow::Result<Holder> {
    let path = path(data);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Holder::Nobody),
        Err(e) => return Err(e).with_context(|| format!("the pid file {}", path.display())),
    };
    // The lock goes again when `file` does.
    match locked_by(&mut file)? {
        None => Ok(Holder::Nobody),
        Some(Some(pid)) => Ok(Holder::Server(pid)),
        Some(None) => bail!("a server holds {}, but its pid file names no process", data.display()),
    }
}

/// Sends `signal` to the holder and waits until it has let go. True: there was one.
pub(crate) async fn end(data: &Path, signal: Signal, patience: Duration) -> anyhow::Result<bool> {
    let Holder::Server(pid) = holder(data)? else { return Ok(false) };
    // The descriptor names this process for ever; asking again makes sure that it is still the server's.
    let process = pidfd_open(pid, PidfdFlags::empty()).context("the server's process")?;
    match holder(data)? {
        Holder::Server(again) if again == pid => {}
        _ => return Ok(true),
    }
    pidfd_send_signal(process.as_fd(), signal).context("signalling the server")?;
    let deadline = tokio::time::Instant::now() + patience;
    while matches!(holder(data)?, Holder::Server(_)) {
        if tokio::time::Instant::now() > deadline {
            bail!(
                "the server (pid {}) did not end within {} s; see its log",
                pid.as_raw_nonzero(),
                patience.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_server_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(holder(dir.path()).unwrap(), Holder::Nobody));
        let first = Lock::acquire(dir.path()).unwrap();
        let e = Lock::acquire(dir.path()).err().unwrap().to_string();
        assert!(e.contains("already running") && e.contains(&std::process::id().to_string()), "{e}");
        assert!(
            matches!(holder(dir.path()).unwrap(), Holder::Server(pid) if pid == rustix::process::getpid())
        );
        drop(first);
        assert!(
            matches!(holder(dir.path()).unwrap(), Holder::Nobody),
            "a file that is left behind stops nobody"
        );
        Lock::acquire(dir.path()).unwrap();
    }
}
