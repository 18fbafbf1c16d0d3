//! From a pipe or terminal into a log, as long as there is room: a full log stops the reading, which stops the
//! process.
//!
//! The end is the exit of the process, not end-of-file: a background child may hold the pipe for ever. At the exit,
//! what is in the pipe at that moment is still taken; whatever comes later is read and thrown away, so that the
//! child neither blocks nor dies of SIGPIPE.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::io::Errno;
use tokio::{io::unix::AsyncFd, time::timeout};

use super::Exec;

/// One read. On the stack: an idle exec holds no buffer.
const READ_BYTES: usize = 32 << 10;
/// A terminal is drained to its hang-up. Where something still holds it, this much silence is the end.
const TERMINAL_SILENCE: Duration = Duration::from_millis(200);
/// And this much output is.
const TERMINAL_BYTES_MAX: u64 = 1 << 20;

/// Runs to the end of the stream.
pub async fn collect(exec: Arc<Exec>, index: usize, fd: Arc<AsyncFd<OwnedFd>>) {
    let open = until_exit(&exec, index, &fd).await && after_exit(&exec, index, &fd).await;
    exec.state().logs[index].closed = true;
    exec.changed.notify_waiters();
    if open && !exec.pty {
        while let Ok(Step::Some(_)) = take(&fd, usize::MAX, |_| {}).await {}
    }
}

enum Step {
    Some(usize),
    End,
}

/// Reads at most `max` bytes when there are some, and gives them to `sink`.
async fn take(fd: &AsyncFd<OwnedFd>, max: usize, mut sink: impl FnMut(&[u8])) -> io::Result<Step> {
    loop {
        let mut guard = fd.readable().await?;
        match read_now(fd.get_ref(), max, &mut sink) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            done => return done,
        }
    }
}

fn read_now(fd: &OwnedFd, max: usize, sink: &mut impl FnMut(&[u8])) -> io::Result<Step> {
    let mut buffer = [0; READ_BYTES];
    match rustix::io::read(fd, &mut buffer[..max.min(READ_BYTES)]) {
        // A terminal whose other side is gone says EIO.
        Ok(0) | Err(Errno::IO) => Ok(Step::End),
        Ok(n) => {
            sink(&buffer[..n]);
            Ok(Step::Some(n))
        }
        Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
        Err(e) => Err(e.into()),
    }
}

fn store(exec: &Exec, index: usize, data: &[u8]) {
    exec.state().logs[index].append(data);
    exec.changed.notify_waiters();
}

/// Waits for room.
async fn room(exec: &Exec, index: usize) -> usize {
    loop {
        let notified = exec.room.notified();
        let room = exec.state().logs[index].room();
        if room > 0 {
            return room;
        }
        notified.await;
    }
}

/// False: end-of-file came first.
async fn until_exit(exec: &Exec, index: usize, fd: &AsyncFd<OwnedFd>) -> bool {
    let mut exited = exec.exited.subscribe();
    loop {
        let step = async {
            let room = room(exec, index).await;
            take(fd, room, |data| store(exec, index, data)).await
        };
        tokio::select! {
            biased;
            _ = exited.wait_for(|exited| *exited) => return true,
            step = step => match step {
                Ok(Step::Some(_)) => {}
                Ok(Step::End) | Err(_) => return false,
            },
        }
    }
}

/// Takes what the process had written before it ended. False: end-of-file.
async fn after_exit(exec: &Exec, index: usize, fd: &AsyncFd<OwnedFd>) -> bool {
    if exec.pty {
        return drain_terminal(exec, index, fd).await;
    }
    let mut left = rustix::io::ioctl_fionread(fd.get_ref()).unwrap_or(0);
    while left > 0 {
        let max = room(exec, index).await.min(left as usize);
        match read_now(fd.get_ref(), max, &mut |data| store(exec, index, data)) {
            Ok(Step::Some(n)) => left = left.saturating_sub(n as u64),
            Ok(Step::End) => return false,
            Err(_) => return true,
        }
    }
    true
}

async fn drain_terminal(exec: &Exec, index: usize, fd: &AsyncFd<OwnedFd>) -> bool {
    let mut taken = 0;
    while taken < TERMINAL_BYTES_MAX {
        let room = room(exec, index).await;
        match timeout(TERMINAL_SILENCE, take(fd, room, |data| store(exec, index, data))).await {
            Ok(Ok(Step::Some(n))) => taken += n as u64,
            Ok(Ok(Step::End) | Err(_)) => return false,
            Err(_) => return true,
        }
    }
    true
}
