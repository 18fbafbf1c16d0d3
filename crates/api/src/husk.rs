//! What forge sends to an aether that waits in the pool, to make it the agent of one sandbox.
//!
//! A **husk** is a sandbox without a root, limits or name: a first process in fresh namespaces, and an aether beside
//! it. forge keeps a pool of them. Activation is one SOCK_SEQPACKET message on aether's descriptor 3: this struct as
//! JSON, with these descriptors attached, in this order:
//!
//! 0. the listening UNIX socket of chronus
//! 1. the namespaces of the sandbox, from `/proc/<init>/ns`, in the order of [`NAMESPACES`]
//!
//! aether answers with one byte when it serves. When descriptor 3 closes before activation, aether exits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::SandboxId;

/// The order of the namespace descriptors, which is also the order to enter them: user first.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// The most bytes of one activation message.
pub const ACTIVATION_BYTES_MAX: usize = 64 << 10;

/// Forge's word to `aether agents`, as JSON in one message with two descriptors: the cgroup v2 directory that the agent
/// is born in, and the far end of the agent's own channel (its descriptor 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentAsk {
    /// The uid and gid that it becomes.
    pub owner: u32,
}

/// The answer: the pid, with the pidfd attached, or what failed.
pub type AgentBorn = std::result::Result<u32, String>;

/// The most bytes of either.
pub const AGENT_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activation {
    pub sandbox: SandboxId,
    /// Defaults of every exec: the image's, then the spec's.
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// The sandbox's cgroup v2 directory `box`, owned by aether's uid. Each exec gets a child `x<n>` of it, so that
    /// `cgroup.kill` of that child ends all that the exec started.
    pub cgroup_box: String,
    /// `tasks` of the sandbox's v1 hierarchies, where a process writes "0" to join before it enters the
    /// namespaces. Empty on a host with v2 controllers.
    pub cgroup_v1_tasks: Vec<String>,
    /// A file that holds a line `oom_kill <count>`: v1 `memory.oom_control`, or v2 `memory.events`.
    pub oom_counter: Option<String>,
    /// The writable layer is memory: what is written there counts as the sandbox's.
    #[serde(default)]
    pub root_in_memory: bool,
    /// Capabilities that root inside keeps, as a bit set (see `linux::confine`).
    pub capabilities: u64,
}
