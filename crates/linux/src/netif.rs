//! The loopback interface of this thread's network namespace.

use std::{io, os::fd::AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings `lo` up.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: ifreq is plain data; all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives this (single-threaded) process a network namespace of its own.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: integers only; the flag shares no memory or descriptors.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
