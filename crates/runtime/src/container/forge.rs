//! forge: the spawner. A small, single-threaded process in a mount namespace with few mounts.
//!
//! Why a process of its own: creating namespaces copies the caller's mount table, and forking copies its memory, so
//! both must be small; and fork is safe only without threads. forge keeps a pool of husks (see `api::husk`), makes
//! a sandbox of one when the edge asks, and keeps no truth: sandboxes outlive it, and the edge starts another.
//!
//! ```text
//! serve   the loop: requests, refill of the pool, reaping
//! agents  the process that forks an aether for each husk
//! husk    namespaces, cgroups, uids, the first process and an aether, waiting
//! create  a husk becomes a sandbox: limits, root, activation
//! root    layers and upper composed by overlayfs, ids mapped
//! seat    how overlayfs is given them, by what the kernel can do
//! inside  what the first process does in its namespaces before it becomes init
//! lean    forge's own mount namespace
//! ```

mod agents;
mod create;
mod husk;
mod inside;
mod lean;
mod root;
mod seat;
mod serve;

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use super::cgroup::Layout;

/// What forge is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The edge's data directory: bound into the lean namespace under its own name; also names the claims of slots.
    pub data: PathBuf,
    /// Where to listen.
    pub socket: PathBuf,
    /// The static aether binary.
    pub aether: PathBuf,
    /// Husks that wait.
    pub pool_size: usize,
}

/// What every part of forge needs.
struct Forge {
    config: Config,
    agents: agents::Agents,
    /// pid 1 of every sandbox.
    init: OwnedFd,
    /// Built once; every first process installs it.
    filter: linux::confine::Filter,
    /// As forge's own mount namespace shows it, which is also aether's.
    layout: Layout,
    layers: root::Layers,
    next_slot: u32,
}

/// Serves until it is told to retire. Errors: a start-up step failed; nothing is left then.
pub fn run(config: Config) -> io::Result<()> {
    linux::clone::ensure_single_threaded()?;
    linux::privilege::become_subreaper()?;
    linux::privilege::set_undumpable()?;
    let aether = linux::sealed::program(&config.aether)?;
    let init = linux::init::program()?;
    let host_layout = Layout::detect()?;
    let listener = serve::listen(&config.socket)?;
    lean::enter(&host_layout, &config.data)?;
    let layout = host_layout.moved_to(Path::new(lean::CGROUPS));
    let next_slot = std::process::id().wrapping_mul(97) % super::slot::SLOTS_MAX;
    let mut forge = Forge {
        agents: agents::Agents::start(aether, &config.data)?,
        config,
        init,
        filter: linux::confine::Filter::new(),
        layout,
        layers: root::Layers::new(),
        next_slot,
    };
    forge.serve(&listener)
}
