//! Standard input: a bounded queue, written as the process reads.

use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc};

use api::limit::AETHER_BUFFER_BYTES;
use bytes::{Buf, Bytes};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::{Exec, log::Log};

/// What a terminal takes for end-of-file.
const END_OF_TRANSMISSION: &[u8] = &[4];

#[derive(Default)]
pub struct Feed {
    queue: VecDeque<Bytes>,
    bytes: usize,
    /// No more will come.
    closed: bool,
    /// Nobody reads: what comes is thrown away.
    gone: bool,
    /// A client waits for room, so its acknowledgements wait behind its input.
    pub stuck: bool,
}

impl Feed {
    /// All there is, then end-of-file.
    pub fn fill(&mut self, data: Bytes) {
        self.bytes = data.len();
        self.queue.push_back(data);
        self.closed = true;
    }
    pub fn close(&mut self) {
        self.closed = true;
    }
    pub fn give_up(&mut self) {
        *self = Self { closed: true, gone: true, ..Self::default() };
    }
}

/// Queues input from a client, when there is room.
///
/// While it waits, the client's acknowledgements are stuck behind its own input, and a process that writes as much
/// as it reads would wait for ever. So what the clients were sent counts as acknowledged for that while.
pub async fn push(exec: &Exec, data: Bytes) {
    if data.is_empty() {
        return;
    }
    loop {
        let notified = exec.fed.notified();
        {
            let mut state = exec.state();
            if state.feed.gone || state.feed.closed {
                return;
            }
            if state.feed.bytes == 0 || state.feed.bytes + data.len() <= AETHER_BUFFER_BYTES {
                state.feed.bytes += data.len();
                state.feed.queue.push_back(data);
                state.feed.stuck = false;
                break;
            }
            state.feed.stuck = true;
            state.logs.iter_mut().for_each(Log::acknowledge_sent);
        }
        exec.room.notify_waiters();
        notified.await;
    }
    exec.fed.notify_waiters();
}

/// End-of-file after what is queued.
pub fn close(exec: &Exec) {
    exec.state().feed.close();
    exec.fed.notify_waiters();
}

enum Next {
    Data(Bytes),
    Close,
}

async fn next(exec: &Exec) -> Next {
    loop {
        let notified = exec.fed.notified();
        {
            let mut state = exec.state();
            if let Some(data) = state.feed.queue.pop_front() {
                return Next::Data(data);
            }
            if state.feed.closed {
                return Next::Close;
            }
        }
        notified.await;
    }
}

/// Writes the queue to `fd` until it is closed, the reader is gone, or the process has ended.
pub async fn feed(exec: Arc<Exec>, fd: Arc<AsyncFd<OwnedFd>>) {
    let mut exited = exec.exited.subscribe();
    tokio::select! {
        _ = exited.wait_for(|exited| *exited) => {}
        _ = write_queue(&exec, &fd) => {}
    }
    exec.state().feed.give_up();
    exec.fed.notify_waiters();
}

async fn write_queue(exec: &Exec, fd: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut at_line_start = true;
    loop {
        match next(exec).await {
            Next::Data(data) => {
                at_line_start = data.last().is_none_or(|b| matches!(b, b'\n' | b'\r'));
                let length = data.len();
                write_all(fd, data).await?;
                exec.state().feed.bytes -= length;
                exec.fed.notify_waiters();
            }
            Next::Close => {
                // A pipe says it by closing. In the middle of a line, a terminal needs it twice.
                let times = if exec.pty { 1 + usize::from(!at_line_start) } else { 0 };
                return write_all(fd, END_OF_TRANSMISSION.repeat(times).into()).await;
            }
        }
    }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut data: Bytes) -> io::Result<()> {
    while data.has_remaining() {
        let mut guard = fd.writable().await?;
        match rustix::io::write(fd.get_ref(), &data) {
            Ok(n) => data.advance(n),
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
