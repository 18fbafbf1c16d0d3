//! A child of this process, awaited by its pidfd without a thread and without SIGCHLD.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A descriptor that the runtime watches.
pub fn ready(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated because a type other than OwnedFd may lie about its descriptor; the new way is unsafe to call.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, interest)
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// Dropped before it was awaited: killed, and reaped in the background.
pub struct Process {
    pidfd: Option<AsyncFd<OwnedFd>>,
}

impl Process {
    /// Needs the runtime.
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pidfd: Some(ready(pidfd, Interest::READABLE)?) })
    }

    /// A child that another child made for us. Its number cannot be reused before we reap it.
    pub fn of_child(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Self::new(pidfd_open(pid, PidfdFlags::empty())?)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(|fd| fd.get_ref().as_fd())
    }

    /// Sends `signal`; one that has ended takes it in silence.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let Some(fd) = self.fd() else { return Ok(()) };
        // Real-time signals have no name in rustix.
        match linux::fork::signal(fd, signal) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(()),
            done => done,
        }
    }

    /// Waits for its end and reaps it.
    pub async fn ended(&self) -> io::Result<Ended> {
        let Some(fd) = &self.pidfd else { return Err(io::ErrorKind::NotFound.into()) };
        ended(fd).await
    }

    /// It was reaped: drop must not.
    pub fn forget(&mut self) {
        self.pidfd = None;
    }
}

async fn ended(fd: &AsyncFd<OwnedFd>) -> io::Result<Ended> {
    loop {
        let mut guard = fd.readable().await?;
        if let Some(status) = reap(fd.get_ref().as_fd())? {
            return Ok(status);
        }
        guard.clear_ready();
    }
}

fn reap(fd: BorrowedFd) -> io::Result<Option<Ended>> {
    let status = waitid(WaitId::PidFd(fd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    Ok(status.map(|s| describe(&s)))
}

fn describe(status: &WaitIdStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Signal(Signal::KILL.as_raw()),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(fd) = self.pidfd.take() else { return };
        let _ = pidfd_send_signal(fd.get_ref(), Signal::KILL);
        if matches!(reap(fd.get_ref().as_fd()), Ok(None)) && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                let _ = ended(&fd).await;
            });
        }
    }
}
