//! clone3: a child in new namespaces, born in a cgroup, with a pidfd, running a closure.
//!
//! Only for single-threaded processes: after a fork of one thread of many, the child may hold locks that nobody
//! will ever release. [`spawn`] checks that and refuses.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// libc's constant of this name overflows its own type.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// What the child gets. Flags are `libc::CLONE_*`.
#[derive(Default)]
pub struct Args<'a> {
    pub flags: u64,
    /// A cgroup v2 directory to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The child of our parent instead of ours.
    pub sibling: bool,
}

/// A child and the descriptor that stands for it.
#[derive(Debug)]
pub struct Child {
    pub pid: u32,
    pub pidfd: OwnedFd,
}

/// Threads of this process.
fn threads() -> io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Threads:"))
        .and_then(|n| n.trim().parse().ok())
        .ok_or_else(|| io::Error::other("no Threads line in /proc/self/status"))
}

/// Errors if this process has more than one thread. A daemon calls it once, before its first [`spawn`].
pub fn ensure_single_threaded() -> io::Result<()> {
    match threads()? {
        1 => Ok(()),
        n => Err(io::Error::other(format!("{n} threads: only a single-threaded process may fork"))),
    }
}

/// Runs `child` in a new process; its return value is the exit code. A panic in it exits with 101.
///
/// The caller keeps its process single-threaded (see [`ensure_single_threaded`]).
pub fn spawn(args: &Args, child: impl FnOnce() -> i32) -> io::Result<Child> {
    let mut pidfd: libc::c_int = -1;
    let mut flags = args.flags | libc::CLONE_PIDFD as u64;
    if args.sibling {
        flags |= libc::CLONE_PARENT as u64;
    }
    // SAFETY: clone_args is plain data, all zeroes is its documented "nothing asked".
    let mut raw: libc::clone_args = unsafe { std::mem::zeroed() };
    if let Some(cgroup) = args.cgroup {
        flags |= INTO_CGROUP;
        raw.cgroup = cgroup.as_raw_fd() as u64;
    }
    raw.flags = flags;
    raw.pidfd = &raw mut pidfd as u64;
    // With CLONE_PARENT the exit signal is the caller's own; the kernel wants 0.
    raw.exit_signal = if args.sibling { 0 } else { libc::SIGCHLD as u64 };
    // SAFETY: without CLONE_VM the child has its own copy of the memory, so it goes on like after fork(2). The caller is
    // single-threaded, so no lock is held by a thread that does not exist in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const raw, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            crate::exits::unblock_all();
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            exit_now(code)
        }
        pid => {
            // SAFETY: the kernel made this descriptor for us and nobody else knows it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Child { pid: pid as u32, pidfd })
        }
    }
}

/// Ends this process without running destructors or flushing buffers that are the parent's too.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches nothing of ours.
    unsafe { libc::_exit(code) }
}
