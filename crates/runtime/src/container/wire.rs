//! One message each way between the edge and forge: JSON with descriptors attached, on a SOCK_SEQPACKET socket.
//!
//! Only root can reach the socket. Messages are bounded by [`MESSAGE_BYTES_MAX`]; every wait has a deadline.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use linux::scm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Serialize, de::DeserializeOwned};

/// A create with 64 layers and a large environment fits with room to spare.
pub const MESSAGE_BYTES_MAX: usize = 192 << 10;

/// Sends `message` with `fds`.
pub fn send(socket: BorrowedFd, message: &impl Serialize, fds: &[BorrowedFd]) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    if json.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too large"));
    }
    scm::send(socket, &json, fds)
}

/// Waits until `socket` can be read or `timeout` is over (`TimedOut`).
pub fn wait_readable(socket: BorrowedFd, timeout: Duration) -> io::Result<()> {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
        Err(e) => Err(e.into()),
    }
}

/// Receives one message within `timeout`. An end of stream is `UnexpectedEof`.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd, timeout: Duration) -> io::Result<(T, Vec<OwnedFd>)> {
    wait_readable(socket, timeout)?;
    let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
    let (length, fds) = scm::recv(socket, &mut bytes)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&bytes[..length])?, fds))
}
