//! Which descriptors a process keeps.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Makes `fd` the descriptor `number`, open across exec; every other one above 2 closes at exec.
pub fn keep_as(fd: BorrowedFd, number: i32) -> io::Result<()> {
    // SAFETY: integers only. Marking close-on-exec ends no descriptor that somebody here still owns.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `number` is replaced on purpose, right before an exec.
    let done = unsafe {
        if fd.as_raw_fd() == number {
            libc::fcntl(number, libc::F_SETFD, 0)
        } else {
            libc::dup2(fd.as_raw_fd(), number)
        }
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Every descriptor above 2 closes at exec, and standard input, output and error become `null`.
pub fn only_null(null: BorrowedFd) -> io::Result<()> {
    // SAFETY: as in `keep_as`.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == -1 {
        return Err(io::Error::last_os_error());
    }
    for number in 0..3 {
        // SAFETY: the three are replaced on purpose, right before an exec.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes every descriptor but the first three and `kept`. For a forked child that never runs its parent's
/// destructors: what it inherited would otherwise stay open in it for as long as it lives.
pub fn close_except(kept: &[BorrowedFd]) -> io::Result<()> {
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    numbers.sort_unstable();
    let mut from = 3;
    for number in numbers {
        if number > from {
            close_range(from, number - 1)?;
        }
        from = from.max(number + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: integers only; the caller promises that nobody in this process owns the descriptors any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
