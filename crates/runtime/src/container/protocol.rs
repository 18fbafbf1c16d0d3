//! What the edge asks of forge, and what it hears.

use std::{collections::BTreeMap, path::PathBuf};

use api::SandboxId;
use serde::{Deserialize, Serialize};

use crate::LayerFiles;

/// Both sides must be of one build: a newer edge retires an older forge and starts its own.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Answer: [`Answer::Hello`].
    Hello,
    /// Make a sandbox of a husk. Descriptor 0: chronus's listening socket. Answer: [`Answer::Created`].
    Create(Box<Create>),
    /// Forget a layer's mount: its files are about to be removed. Answer: [`Answer::Done`].
    Forget { digest: String },
    /// Empty the pool and exit; sandboxes live on. Answer: [`Answer::Done`].
    Retire,
}

/// A sandbox, as forge sees it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Create {
    pub id: SandboxId,
    /// Lowest first.
    pub layers: Vec<LayerFiles>,
    pub upper: Upper,
    pub hostname: String,
    pub limits: Limits,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// Added to the new root: file name under /etc, and content.
    pub etc: Vec<(String, String)>,
}

/// Where the writable part lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Upper {
    /// A directory with `up` and `wk` in it, on its own subvolume.
    Disk(PathBuf),
    /// A tmpfs of so many bytes.
    Memory { bytes_max: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes_max: u64,
    pub cpu_millis_max: u32,
    pub pids_max: u32,
    pub best_effort: bool,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Hello {
        version: String,
        pid: u32,
        pooled: Vec<u32>,
    },
    /// Descriptors: init's pidfd, aether's pidfd, the network namespace.
    Created(Husk),
    Done,
    Failed {
        message: String,
        /// It is the image's fault, or the caller's: the message is for them.
        refused: bool,
    },
}

/// A process that can be found again: a pid may be used twice, a pid with its start time may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// What a sandbox holds of the node, as it stands in the edge's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Husk {
    /// Names its cgroups and its range of uids; unique on the machine.
    pub slot: u32,
    pub init: Process,
    pub aether: Process,
}
