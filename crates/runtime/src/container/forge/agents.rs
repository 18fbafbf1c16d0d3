//! The process that forks an aether for each husk: started once, started again where it has died.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use api::husk::{AgentAsk, AgentBorn};
use linux::{
    clone::{self, Args, Child},
    scm, sealed,
};

use super::husk::STEP_TIMEOUT;
use crate::container::wire;

pub(super) struct Agents {
    program: OwnedFd,
    /// In its command line, so that `ps` tells whose it is.
    data: String,
    link: OwnedFd,
}

impl Agents {
    /// `program`: the static aether, sealed.
    pub(super) fn start(program: OwnedFd, data: &Path) -> io::Result<Self> {
        let data = data.to_string_lossy().into_owned();
        let link = spawn(program.as_fd(), &data)?;
        Ok(Self { program, data, link })
    }

    /// An aether that waits for its activation on `control`, as the uid `owner`, born in `cgroup`. It is our child.
    pub(super) fn bear(&mut self, owner: u32, cgroup: BorrowedFd, control: BorrowedFd) -> io::Result<Child> {
        let ask = AgentAsk { owner };
        if wire::send(self.link.as_fd(), &ask, &[cgroup, control]).is_err() {
            tracing::warn!("the process that forks the agents has died; another is started");
            self.link = spawn(self.program.as_fd(), &self.data)?;
            wire::send(self.link.as_fd(), &ask, &[cgroup, control])?;
        }
        let (born, fds) = wire::receive::<AgentBorn>(self.link.as_fd(), STEP_TIMEOUT)?;
        let pid = born.map_err(|why| io::Error::other(format!("no agent: {why}")))?;
        let pidfd = fds.into_iter().next().ok_or_else(|| io::Error::other("an agent without a pidfd"))?;
        Ok(Child { pid, pidfd })
    }
}

/// Our end of its channel; it ends when this closes.
fn spawn(program: BorrowedFd, data: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = scm::pair()?;
    clone::spawn(&Args::default(), || {
        let error = match linux::descriptors::keep_as(theirs.as_fd(), 3) {
            Ok(()) => sealed::exec(program, &["aether", "agents", data]),
            Err(error) => error,
        };
        tracing::error!(%error, "aether not started");
        1
    })?;
    Ok(ours)
}
