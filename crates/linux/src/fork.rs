//! What a forked child does to itself before it becomes another program: descriptors, signals, execve.
//!
//! Invariant: after [`settle`] the child has exactly four descriptors, so nothing of the parent can be reached by a
//! path like `/proc/self/fd/7` (the class of CVE-2024-21626).

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// The descriptor on which the child tells its parent how it goes; closed by a successful execve.
const REPORT: i32 = 3;
/// Above what we dup onto, so that no source is overwritten before it was copied.
const SAFE: i32 = 16;

fn check(done: i32) -> io::Result<i32> {
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Makes `stdio` descriptors 0, 1 and 2, `report` descriptor 3 (close-on-exec), and closes every other one.
///
/// Every other owner of a descriptor in this process is void afterwards: the child must end by execve or
/// [`crate::clone::exit_now`], without dropping them.
pub fn settle(stdio: [BorrowedFd; 3], report: BorrowedFd) -> io::Result<OwnedFd> {
    let sources = [stdio[0], stdio[1], stdio[2], report].map(|fd| fd.as_raw_fd());
    let mut safe = [0; 4];
    for (copy, source) in safe.iter_mut().zip(sources) {
        // SAFETY: duplicates an open descriptor onto a free number.
        *copy = check(unsafe { libc::fcntl(source, libc::F_DUPFD_CLOEXEC, SAFE) })?;
    }
    for (target, source) in (0..3).zip(safe) {
        // SAFETY: the targets are this process's standard streams, which nothing owns by value.
        check(unsafe { libc::dup2(source, target) })?;
    }
    // SAFETY: the caller was told that owners of other descriptors become void.
    check(unsafe { libc::dup3(safe[3], REPORT, libc::O_CLOEXEC) })?;
    close_from(REPORT as u32 + 1)?;
    // SAFETY: descriptor 3 is open (dup3 just made it) and this is its one owner from here on.
    Ok(unsafe { OwnedFd::from_raw_fd(REPORT) })
}

/// Keeps the standard streams and `keep`, which become descriptors 3 and on in their order, and closes every other
/// one: for a child that goes on as the same program. The same caution as for [`settle`].
pub fn keep_only(keep: &[BorrowedFd]) -> io::Result<Vec<OwnedFd>> {
    let mut safe = Vec::with_capacity(keep.len());
    for fd in keep {
        // SAFETY: duplicates an open descriptor onto a free number.
        safe.push(check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, SAFE) })?);
    }
    let mut kept = Vec::with_capacity(keep.len());
    for (target, source) in (REPORT..SAFE).zip(safe) {
        // SAFETY: the caller was told that owners of other descriptors become void; from here on this is the one
        // owner of `target`.
        kept.push(unsafe { OwnedFd::from_raw_fd(check(libc::dup3(source, target, libc::O_CLOEXEC))?) });
    }
    close_from(REPORT as u32 + keep.len() as u32)?;
    Ok(kept)
}

fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: integers only; see `settle` for what it voids.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    check(done as i32).map(drop)
}

/// Every signal to its default action, none blocked: execve keeps ignored signals ignored, and the Rust runtime
/// ignores SIGPIPE.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: signal() with SIG_DFL installs no code; for the numbers that refuse it fails without effect.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    crate::exits::unblock_all();
}

/// A program's arguments and environment, ready for execve.
pub struct Image {
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Image {
    pub fn new(argv: Vec<CString>, env: Vec<CString>) -> Self {
        Self { argv, env }
    }

    /// Becomes the program at `path`. Returns only on an error.
    pub fn exec(&self, path: &CStr) -> io::Error {
        let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
            list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        // SAFETY: both are null-terminated arrays of C strings that outlive the call.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// What one buffer of a stream may take from the heap: a larger one is mapped, cleared and unmapped each time.
const STREAM_BUFFER_BYTES_MAX: i32 = 1 << 20;

/// Tells the allocator to keep to one arena and to ask for little: for a process that idles most of its life. What a
/// stream took stays until [`trim_heap`].
pub fn keep_heap_small() {
    // SAFETY: integers only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * STREAM_BUFFER_BYTES_MAX);
        libc::mallopt(libc::M_TOP_PAD, 4 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, STREAM_BUFFER_BYTES_MAX);
    }
}

/// Gives free heap pages back to the kernel.
pub fn trim_heap() {
    // SAFETY: touches only the allocator's free memory.
    unsafe { libc::malloc_trim(0) };
}

/// Sends any signal, real-time ones too, to the process of a pidfd.
pub fn signal(pidfd: BorrowedFd, signal: i32) -> io::Result<()> {
    // SAFETY: integers and a null pointer, which the call documents.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    check(done as i32).map(drop)
}

/// Ignores SIGCHLD, also after an exec, so that the kernel reaps children and adopted orphans by itself.
pub fn ignore_children() {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// The descriptor `number` that the parent left open for us. Call it once, first thing. Errors: it is not open.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and by the contract of this process's start nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
