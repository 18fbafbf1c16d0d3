//! The deaths of children as something to poll.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Readable when a child has died since [`ChildExits::clear`]. What [`crate::clone`] starts begins with no signal blocked.
pub struct ChildExits(OwnedFd);

impl ChildExits {
    /// Blocks SIGCHLD in this thread, for as long as the process lives.
    pub fn watch() -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before it is read; the descriptor is new and ours alone.
        unsafe {
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            let set = set.assume_init();
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == -1 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Forgets the deaths so far. Call it before the children are collected: a later one is told again.
    pub fn clear(&self) {
        // One record holds any number of deaths, and the descriptor does not block.
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.0, &mut record).is_ok_and(|n| n > 0) {}
    }
}

impl AsFd for ChildExits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// No signal is blocked in this thread.
pub(crate) fn unblock_all() {
    // SAFETY: the set is initialised by sigemptyset before it is read.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::clone::{self, Args};

    fn readable(exits: &ChildExits, within: Duration) -> bool {
        let patience = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        poll(&mut [PollFd::new(exits, PollFlags::IN)], Some(&patience)).unwrap() == 1
    }

    /// In a process of its own: the mask is this thread's alone, and SIGCHLD goes to any thread.
    #[test]
    fn a_death_is_told_until_it_is_cleared_and_children_begin_unblocked() {
        let child = clone::spawn(&Args::default(), || {
            let exits = ChildExits::watch().unwrap();
            if readable(&exits, Duration::ZERO) {
                return 1;
            }
            // Nothing is blocked in it: the signal ends it.
            let _killed = clone::spawn(&Args::default(), || {
                // SAFETY: an integer only.
                unsafe { libc::raise(libc::SIGTERM) };
                0
            });
            if !readable(&exits, Duration::from_secs(60)) {
                return 2;
            }
            exits.clear();
            i32::from(readable(&exits, Duration::ZERO)) * 3
        });
        let mut status = 0;
        // SAFETY: waits for our own child, into a local.
        unsafe { libc::waitpid(child.unwrap().pid as i32, &raw mut status, 0) };
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    }
}
