//! `aether agents`: forks an agent for each husk that forge makes.
//!
//! A fork of a process that has started once costs a quarter of a start (0.1 ms to 0.45 ms: the start of a static libc
//! asks the processor for its features, and each answer leaves a virtual machine), and agents share what they never
//! write. Each is forge's own child, born in the cgroup that forge names, and root only until it is the owner.
//!
//! Invariant: this process makes no random number and keeps no secret, for its children would share it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use api::husk::{AGENT_BYTES_MAX, AgentAsk, AgentBorn};
use linux::{
    clone::{self, Args, Child},
    scm,
};

use crate::agent;

/// Serves forge on descriptor 3 until it closes it.
pub fn run() -> io::Result<()> {
    linux::fork::keep_heap_small();
    linux::privilege::set_undumpable()?;
    linux::clone::ensure_single_threaded()?;
    let forge = linux::fork::inherited(3)?;
    let mut buffer = [0; AGENT_BYTES_MAX];
    loop {
        let (length, fds) = scm::recv(&forge, &mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let born = serde_json::from_slice(&buffer[..length])
            .map_err(io::Error::from)
            .and_then(|ask: AgentAsk| bear(&ask, &fds));
        match born {
            Ok(child) => scm::send(&forge, &answer(&Ok(child.pid))?, &[child.pidfd.as_fd()])?,
            Err(error) => scm::send(&forge, &answer(&Err(error.to_string()))?, &[])?,
        }
    }
}

fn answer(born: &AgentBorn) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(born)?)
}

/// An agent, waiting for its activation, as the owner of its sandbox.
fn bear(ask: &AgentAsk, fds: &[OwnedFd]) -> io::Result<Child> {
    let [cgroup, control] = fds else { return Err(io::Error::other("expected a cgroup and a channel")) };
    clone::spawn(&Args { cgroup: Some(cgroup.as_fd()), sibling: true, ..Args::default() }, || {
        let done = linux::fork::keep_only(&[control.as_fd()]).and_then(|mut kept| {
            linux::cred::become_user(ask.owner, ask.owner, &[])?;
            agent::run(kept.remove(0))
        });
        match done {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("aether: {error}");
                1
            }
        }
    })
}
