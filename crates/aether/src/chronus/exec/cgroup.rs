//! One cgroup v2 for each exec, so that one write ends all that it started, whatever that did to get away.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{Error, Result};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::inside::broken;

/// How many pids of a tree are signalled one by one; SIGKILL has no such bound.
const TREE_MAX: usize = 1 << 16;

/// The directory `box` and the children of it that could not be removed yet.
pub struct Cgroups {
    parent: PathBuf,
    next: AtomicU64,
    leftover: Mutex<Vec<PathBuf>>,
}

impl Cgroups {
    pub fn new(parent: String) -> Self {
        Self { parent: parent.into(), next: AtomicU64::new(1), leftover: Mutex::default() }
    }

    /// A new child for one exec.
    pub fn make(self: &Arc<Self>) -> Result<Cgroup> {
        let path = self.parent.join(format!("x{}", self.next.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path).map_err(|e| broken("cgroup", &e))?;
        let opened = openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = opened.map_err(|e| {
            let _ = fs::remove_dir(&path);
            broken("cgroup", &e.into())
        })?;
        Ok(Cgroup { path, directory, home: self.clone() })
    }

    /// Removes what has become empty. True if something is left.
    pub fn sweep(&self) -> bool {
        let mut leftover = self.leftover.lock().unwrap_or_else(PoisonError::into_inner);
        leftover
            .retain(|path| matches!(fs::remove_dir(path), Err(e) if e.kind() == io::ErrorKind::ResourceBusy));
        !leftover.is_empty()
    }
}

/// Dropped: removed now, or when its background processes have ended.
pub struct Cgroup {
    path: PathBuf,
    directory: OwnedFd,
    home: Arc<Cgroups>,
}

impl Cgroup {
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Kills everything in it, at once.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Sends `signal` to everything in it that was there when asked.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let pids = fs::read_to_string(self.path.join("cgroup.procs"))?;
        let fds = pids.lines().take(TREE_MAX).filter_map(|l| {
            let pid = l.parse().ok().and_then(Pid::from_raw)?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        // One that has ended meanwhile is no failure.
        fds.for_each(|fd| drop(linux::fork::signal(fd.as_fd(), signal)));
        Ok(())
    }

    /// Removes the directory if nothing runs in it. True if it is gone.
    pub fn try_remove(&self) -> bool {
        !matches!(fs::remove_dir(&self.path), Err(e) if e.kind() == io::ErrorKind::ResourceBusy)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.try_remove() {
            let path = std::mem::take(&mut self.path);
            self.home.leftover.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        }
    }
}

/// What a failed write to a cgroup means to a caller.
pub fn not_killed(error: &io::Error) -> Error {
    broken("cgroup.kill", error)
}
