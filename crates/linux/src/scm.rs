//! Messages with descriptors attached (SCM_RIGHTS) over a SOCK_SEQPACKET socket: one send is one receive.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The most descriptors of one message.
pub const FDS_MAX: usize = 16;

/// Two ends of one connection, both close-on-exec and blocking.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message. A closed far end is an error, never a signal.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done.map(drop)?),
        }
    }
}

/// Receives one message into `buffer`: its length, 0 when the far end is closed. Descriptors are close-on-exec. A
/// message that did not fit is an error.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut iov = [IoSliceMut::new(buffer)];
        match recvmsg(&socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            done => break done?,
        }
    };
    let fds = control
        .drain()
        .filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message larger than expected"));
    }
    Ok((message.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptor() {
        let (a, b) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&a, b"one", &[write.as_fd()]).unwrap();
        drop(write);
        let mut buffer = [0; 8];
        let (n, fds) = recv(&b, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"one");
        rustix::io::write(&fds[0], b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut buffer).unwrap(), 1);
        send(&a, b"longer than eight", &[]).unwrap();
        assert!(recv(&b, &mut buffer).is_err());
        drop(a);
        assert_eq!(recv(&b, &mut buffer).unwrap().0, 0);
    }
}
