//! Processes that this one need not be the parent of: found again by pid and start time, watched by pidfd.

use std::{
    fs,
    io::{self, Read},
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{protocol::Process, wire};

/// A line of 52 numbers and a name of 15 bytes.
const STAT_BYTES_MAX: usize = 2048;

/// Field 22 of `/proc/<pid>/stat`: when it started, in ticks since boot.
pub(crate) fn start_ticks(pid: u32) -> io::Result<u64> {
    // One read: the kernel writes the whole line anew for each.
    let mut line = [0; STAT_BYTES_MAX];
    let length = fs::File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
    let stat = String::from_utf8_lossy(&line[..length]);
    // The name, field 2, may hold spaces and parentheses: count from the last one.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_whitespace()
        .nth(19)
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in /proc/<pid>/stat"))
}

/// The pidfd of exactly this process. Errors: `NotFound` where it is gone, whatever has its pid now.
pub(crate) fn open(process: Process) -> io::Result<OwnedFd> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = Pid::from_raw(process.pid as i32).ok_or_else(gone)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
    // Checked after the open: the pidfd is of the process that has the pid now.
    match start_ticks(process.pid) {
        Ok(ticks) if ticks == process.start_ticks && !exited(&pidfd) => Ok(pidfd),
        _ => Err(gone()),
    }
}

fn exited(pidfd: &OwnedFd) -> bool {
    use std::os::fd::AsFd;
    wire::wait_readable(pidfd.as_fd(), Duration::ZERO).is_ok()
}

/// Waits for the end of a process. Errors: `TimedOut`.
pub(crate) fn wait_exit(pidfd: BorrowedFd, timeout: Duration) -> io::Result<()> {
    wire::wait_readable(pidfd, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_only_under_its_own_start_time() {
        let pid = std::process::id();
        let me = Process { pid, start_ticks: start_ticks(pid).unwrap() };
        open(me).unwrap();
        let other = Process { start_ticks: me.start_ticks + 1, ..me };
        assert_eq!(open(other).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_dead_are_not_found() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process { pid: child.id(), start_ticks: start_ticks(child.id()).unwrap() };
        open(process).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(open(process).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
