//! forge's loop: one request at a time, the pool filled when nobody asks, the dead reaped.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use linux::exits::ChildExits;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen as listen_on,
        socket_with,
    },
    process::{WaitId, WaitIdOptions, waitid},
};

use super::{Forge, husk::Husk};
use crate::container::{
    protocol::{Answer, Ask, Create, VERSION},
    wire,
};

/// Connections of the edge: as many as it has creates in flight.
const CONNECTIONS_MAX: usize = 64;
/// A client that has said that it sends has this long to do so.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between looks at the dead when nothing else happens.
const IDLE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// With half of the pool there, a husk is made once nobody has asked for this long: what was just created runs its first
/// command now.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 4_000_000 };
/// After a husk could not be made.
const REFILL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Listens at `path`, in place of a dead forge's socket.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen_on(&socket, 128)?;
    Ok(socket)
}

/// What a request leads to.
enum Next {
    Go,
    Hangup,
    Retire,
}

impl Forge {
    pub(super) fn serve(&mut self, listener: &OwnedFd) -> io::Result<()> {
        let mut clients: Vec<OwnedFd> = Vec::new();
        let mut pool: Vec<Husk> = Vec::new();
        let mut refill_failed = false;
        // A sandbox's first process ends only once all of its processes are collected, and some of them are ours then.
        let exits = ChildExits::watch()?;
        loop {
            exits.clear();
            reap();
            let wants_more = pool.len() < self.config.pool_size;
            let patience = match (wants_more, refill_failed) {
                (true, false) if pool.len() * 2 < self.config.pool_size => Timespec { tv_sec: 0, tv_nsec: 0 },
                (true, false) => QUIET,
                (true, true) => REFILL_PAUSE,
                (false, _) => IDLE,
            };
            // A death alone is no quiet: the next look is at the dead.
            let Some(ready) = wait(&exits, listener, &clients, &patience)? else { continue };
            if ready.is_empty() && wants_more {
                refill_failed = self.refill(&mut pool);
                continue;
            }
            let mut hung_up = Vec::new();
            for &index in ready.iter().filter(|i| **i > 0) {
                match self.answer(clients[index - 1].as_fd(), &mut pool) {
                    Next::Go => {}
                    Next::Hangup => hung_up.push(index - 1),
                    Next::Retire => {
                        pool.drain(..).for_each(Husk::destroy);
                        reap();
                        return Ok(());
                    }
                }
            }
            hung_up.into_iter().rev().for_each(|index| drop(clients.swap_remove(index)));
            if ready.first() == Some(&0) && clients.len() < CONNECTIONS_MAX {
                clients.push(accept_with(listener, SocketFlags::CLOEXEC)?);
            }
        }
    }

    /// One more husk; true where that failed.
    fn refill(&mut self, pool: &mut Vec<Husk>) -> bool {
        match self.make_husk() {
            Ok(husk) => pool.push(husk),
            Err(error) => {
                tracing::warn!(%error, "no husk made");
                return true;
            }
        }
        false
    }

    fn answer(&mut self, client: BorrowedFd, pool: &mut Vec<Husk>) -> Next {
        let (ask, fds) = match wire::receive::<Ask>(client, MESSAGE_TIMEOUT) {
            Ok(message) => message,
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    tracing::warn!(%error, "bad request");
                }
                return Next::Hangup;
            }
        };
        let said = match ask {
            Ask::Hello => {
                let pooled = pool.iter().map(|h| h.slot).collect();
                let hello = Answer::Hello { version: VERSION.into(), pid: std::process::id(), pooled };
                wire::send(client, &hello, &[])
            }
            Ask::Create(create) => return self.answer_create(client, pool, &create, fds),
            Ask::Forget { digest } => {
                self.layers.forget(&digest);
                wire::send(client, &Answer::Done, &[])
            }
            Ask::Retire => {
                let _ = wire::send(client, &Answer::Done, &[]);
                return Next::Retire;
            }
        };
        if said.is_ok() { Next::Go } else { Next::Hangup }
    }

    fn answer_create(
        &mut self,
        client: BorrowedFd,
        pool: &mut Vec<Husk>,
        create: &Create,
        mut fds: Vec<OwnedFd>,
    ) -> Next {
        let made = (|| {
            let listener = fds.pop().ok_or_else(|| io::Error::other("no listener came"))?;
            let husk = self.warm_husk(pool)?;
            let husk = self.create(husk, create, listener)?;
            let record = husk.record();
            Ok::<_, io::Error>((husk, record))
        })();
        let said = match made {
            Ok((husk, Ok(record))) => {
                let fds = [husk.init.pidfd.as_fd(), husk.aether.pidfd.as_fd(), husk.netns()];
                let said = wire::send(client, &Answer::Created(record), &fds);
                if said.is_err() {
                    // The edge is gone: nobody knows of this sandbox.
                    husk.destroy();
                }
                said
            }
            Ok((husk, Err(error))) => {
                husk.destroy();
                wire::send(client, &failed(&error), &[])
            }
            Err(error) => wire::send(client, &failed(&error), &[]),
        };
        if said.is_ok() { Next::Go } else { Next::Hangup }
    }

    /// A husk that still lives: from the pool, else a new one.
    fn warm_husk(&mut self, pool: &mut Vec<Husk>) -> io::Result<Husk> {
        while let Some(husk) = pool.pop() {
            let dead = [&husk.init, &husk.aether]
                .iter()
                .any(|child| wire::wait_readable(child.pidfd.as_fd(), Duration::ZERO).is_ok());
            if !dead {
                return Ok(husk);
            }
            tracing::warn!(slot = husk.slot, "a husk died in the pool");
            husk.destroy();
        }
        self.make_husk()
    }
}

fn failed(error: &io::Error) -> Answer {
    Answer::Failed { message: error.to_string(), refused: error.kind() == io::ErrorKind::InvalidInput }
}

/// Which are readable: 0 is the listener, n + 1 the client n; none after `patience`. None: a child has died, and that is
/// all.
fn wait(
    exits: &ChildExits,
    listener: &OwnedFd,
    clients: &[OwnedFd],
    patience: &Timespec,
) -> io::Result<Option<Vec<usize>>> {
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(clients.iter().map(|c| PollFd::new(c, PollFlags::IN)));
    fds.push(PollFd::new(exits, PollFlags::IN));
    match poll(&mut fds, Some(patience)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let died = fds.pop().is_some_and(|fd| !fd.revents().is_empty());
    let ready: Vec<usize> =
        fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(i, _)| i).collect();
    Ok((!died || !ready.is_empty()).then_some(ready))
}

/// Collects children that have ended: sandboxes of long ago, and orphans of theirs.
fn reap() {
    while let Ok(Some(_)) = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {}
}
