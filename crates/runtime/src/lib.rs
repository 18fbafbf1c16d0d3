//! Trait [`Runtime`] and its backends: what makes a sandbox of one kind exist, and end without a trace.
//!
//! A backend knows nothing of names, TTLs, quotas or callers; the edge does. All that a backend must find again
//! after a restart of the edge is in the [`Record`] that it returned.

pub mod container;
pub mod fake;

use std::{path::PathBuf, sync::Arc};

use api::{Result, SandboxId, arrow::Chronus, spec::SandboxSpec};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// One EROFS layer on the node's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFiles {
    /// `blake3:<hex>`
    pub digest: String,
    /// The EROFS image with the metadata.
    pub meta: PathBuf,
    /// Its data device; None where the image holds its own data.
    pub blob: Option<PathBuf>,
}

/// All that a backend needs to know. Pure data: made by the edge, acted on here.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub id: SandboxId,
    pub spec: SandboxSpec,
    /// Lowest first: base, workspaces, toolkits.
    pub layers: Vec<LayerFiles>,
    /// The image's environment with the spec's over it.
    pub env: std::collections::BTreeMap<String, String>,
    /// The spec's user, else the image's.
    pub user: Option<String>,
    /// The spec's workdir, else the image's.
    pub workdir: Option<String>,
    pub hostname: String,
    /// The snapshot that its writable part starts as a copy of; None: empty.
    pub disk: Option<PathBuf>,
}

/// What a backend must be told to find a sandbox again. Opaque to the edge, kept in its ledger.
pub type Record = serde_json::Value;

/// Names of snapshots that nobody but the request that made them knows begin so.
pub const TEMPORARY: char = '_';

/// A sandbox that runs.
pub struct Handle {
    pub record: Record,
    /// The way inside.
    pub chronus: Arc<dyn Chronus>,
    /// Becomes Some(why) when its first process or its agent has died.
    pub ended: watch::Receiver<Option<String>>,
}

#[async_trait]
pub trait Runtime: Send + Sync {
    /// Makes it. On an error nothing of it is left. `note` is called with the record before the first step whose
    /// trace outlives this process, so that a crash in the middle can be cleaned up from the ledger.
    async fn create(&self, plan: &Plan, note: &(dyn for<'r> Fn(&'r Record) + Send + Sync)) -> Result<Handle>;
    /// Takes a sandbox of an earlier process over. Errors: `sandbox_gone` where it died meanwhile.
    async fn adopt(&self, id: &SandboxId, record: &Record) -> Result<Handle>;
    /// Removes every trace: processes, mounts, cgroups, namespaces, ids, disk. Idempotent; answers when all is gone.
    async fn stop(&self, id: &SandboxId, record: &Record) -> Result<()>;
    /// As `stop`, but its snapshots stay: it is about to be made again from one.
    async fn reset(&self, id: &SandboxId, record: &Record) -> Result<()>;
    /// A read-only copy of its writable part as it is at one instant, every process held still for it; gives its path.
    /// Names are unique in the sandbox. It goes with the sandbox; one whose name begins with [`TEMPORARY`] goes when
    /// the sandbox is adopted, too. Errors: `unsupported` where its disk is memory, `deadline_exceeded`, `no_capacity`.
    async fn snapshot(&self, id: &SandboxId, record: &Record, name: &str) -> Result<PathBuf>;
    /// Idempotent.
    async fn remove_snapshot(&self, id: &SandboxId, name: &str) -> Result<()>;
}
