//! The verbs of a sandbox's disk: snapshots that stay (checkpoints), snapshots for one request, and the way back.
//!
//! Its actor takes them one at a time, between other commands: no snapshot is made of what is being removed, and none is
//! left behind by what has been. Processes inside are held still by the runtime for the time of a snapshot.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    Code, Error, Result, SandboxId, image::ImageConfig, limit, snapshot::Checkpoint, spec::SandboxInfo,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Actor, Command, Sandbox};
use crate::clock::now_ms;

/// A checkpoint as the ledger knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub checkpoint: Checkpoint,
    /// Where the runtime has it.
    pub path: PathBuf,
}

/// What an actor can be asked of its disk.
pub(crate) enum DiskCommand {
    Checkpoint {
        name: String,
        done: oneshot::Sender<Result<Checkpoint>>,
    },
    RemoveCheckpoint {
        name: String,
        done: oneshot::Sender<Result<()>>,
    },
    Rollback {
        checkpoint: String,
        done: oneshot::Sender<Result<()>>,
    },
    Snapshot {
        name: String,
        done: oneshot::Sender<Result<(PathBuf, Duration)>>,
    },
    /// Nobody waits for it.
    RemoveSnapshot {
        name: String,
    },
}

impl DiskCommand {
    /// The caller may have left.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Checkpoint { done, .. } => drop(done.send(Err(error))),
            Self::RemoveCheckpoint { done, .. } | Self::Rollback { done, .. } => drop(done.send(Err(error))),
            Self::Snapshot { done, .. } => drop(done.send(Err(error))),
            Self::RemoveSnapshot { .. } => {}
        }
    }
}

/// A snapshot for one request; it goes when this does.
pub(crate) struct Snapshot {
    sandbox: Arc<Sandbox>,
    name: String,
    pub(crate) path: PathBuf,
    /// How long the sandbox was held for it.
    pub(crate) took: Duration,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let (sandbox, name) = (self.sandbox.clone(), std::mem::take(&mut self.name));
        // A sandbox that is gone has taken its snapshots along.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = sandbox.commands.send(Command::Disk(DiskCommand::RemoveSnapshot { name })).await;
        });
    }
}

impl Sandbox {
    /// Digests of its layers, base first.
    pub(crate) fn layers(&self) -> &[String] {
        &self.layers
    }

    /// Digests of the images that these came from.
    pub(crate) fn images(&self) -> &[String] {
        &self.images
    }

    /// Of its base image, as it was at the create.
    pub(crate) fn image_config(&self) -> &ImageConfig {
        &self.config
    }

    async fn ask_disk<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> DiskCommand,
    ) -> Result<T> {
        // What is plainly not to be is told at once.
        self.inside()?;
        let (done, answer) = oneshot::channel();
        if self.commands.send(Command::Disk(command(done))).await.is_err() {
            return Err(self.gone());
        }
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    pub(crate) async fn checkpoint(&self, name: Option<String>) -> Result<Checkpoint> {
        let name = name.unwrap_or_else(|| format!("c{}", uuid::Uuid::now_v7().simple()));
        self.ask_disk(|done| DiskCommand::Checkpoint { name, done }).await
    }

    /// Oldest first.
    pub(crate) fn checkpoints(&self) -> Vec<Checkpoint> {
        self.status.borrow().checkpoints.iter().map(|kept| kept.checkpoint.clone()).collect()
    }

    /// Where a checkpoint is. Errors: `not_found`.
    pub(crate) fn checkpoint_path(&self, name: &str) -> Result<PathBuf> {
        let status = self.status.borrow();
        let found = status.checkpoints.iter().find(|kept| kept.checkpoint.name == name);
        found.map(|kept| kept.path.clone()).ok_or_else(|| no_checkpoint(&self.id, name))
    }

    pub(crate) async fn remove_checkpoint(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.ask_disk(|done| DiskCommand::RemoveCheckpoint { name, done }).await
    }

    pub(crate) async fn rollback(&self, checkpoint: &str) -> Result<SandboxInfo> {
        let checkpoint = checkpoint.to_owned();
        self.ask_disk(|done| DiskCommand::Rollback { checkpoint, done }).await?;
        Ok(self.info())
    }

    pub(crate) async fn snapshot(self: &Arc<Self>) -> Result<Snapshot> {
        let name = format!("{}{}", runtime::TEMPORARY, uuid::Uuid::now_v7().simple());
        let asked = name.clone();
        let (path, took) = self.ask_disk(|done| DiskCommand::Snapshot { name: asked, done }).await?;
        Ok(Snapshot { sandbox: self.clone(), name, path, took })
    }
}

fn no_checkpoint(id: &SandboxId, name: &str) -> Error {
    Error::not_found(format!("{id} has no checkpoint `{name}`"))
}

impl Actor {
    /// Does what is asked of a running sandbox's disk, but for a rollback: see `rollback.rs`.
    pub(super) async fn on_disk_command(&mut self, command: DiskCommand) {
        match command {
            DiskCommand::Checkpoint { name, done } => drop(done.send(self.keep(name).await)),
            DiskCommand::RemoveCheckpoint { name, done } => drop(done.send(self.forget(&name).await)),
            DiskCommand::Snapshot { name, done } => {
                let asked = Instant::now();
                let made = self.snapshot(&name).await.map(|path| (path, asked.elapsed()));
                if let Err(Ok(_)) = done.send(made) {
                    // The caller has left, and would not have it removed.
                    self.remove_snapshot(&name).await;
                }
            }
            DiskCommand::RemoveSnapshot { name } => self.remove_snapshot(&name).await,
            rollback @ DiskCommand::Rollback { .. } => {
                rollback.refuse(Error::internal("a rollback came the wrong way"));
            }
        }
    }

    async fn snapshot(&self, name: &str) -> Result<PathBuf> {
        let Some(record) = self.lock_record().clone() else {
            return Err(Error::internal("a running sandbox has no record"));
        };
        self.runtime.snapshot(&self.sandbox.id, &record, name).await
    }

    /// A failure is made good when the sandbox ends.
    async fn remove_snapshot(&self, name: &str) {
        if let Err(error) = self.runtime.remove_snapshot(&self.sandbox.id, name).await {
            tracing::warn!(sandbox = %self.sandbox.id, name, %error, "a snapshot stays until the sandbox ends");
        }
    }

    async fn keep(&mut self, name: String) -> Result<Checkpoint> {
        let id = &self.sandbox.id;
        if self.entry.checkpoints.iter().any(|kept| kept.checkpoint.name == name) {
            return Err(Error::new(Code::AlreadyExists, format!("{id} has a checkpoint `{name}` already")));
        }
        if self.entry.checkpoints.len() >= limit::CHECKPOINTS_MAX {
            let message =
                format!("{id} has {} checkpoints, the most there may be: remove one", limit::CHECKPOINTS_MAX);
            return Err(Error::new(Code::QuotaExceeded, message));
        }
        // One of that name can only be what a killed edge made and told nobody of.
        self.remove_snapshot(&name).await;
        let path = self.snapshot(&name).await?;
        let checkpoint = Checkpoint { name: name.clone(), created_ms: now_ms() };
        self.entry.checkpoints.push(Kept { checkpoint: checkpoint.clone(), path });
        if let Err(error) = self.save() {
            self.entry.checkpoints.pop();
            self.remove_snapshot(&name).await;
            return Err(error);
        }
        self.publish_checkpoints();
        Ok(checkpoint)
    }

    /// Out of the ledger first: what it names is there.
    async fn forget(&mut self, name: &str) -> Result<()> {
        let found = self.entry.checkpoints.iter().position(|kept| kept.checkpoint.name == name);
        let index = found.ok_or_else(|| no_checkpoint(&self.sandbox.id, name))?;
        let kept = self.entry.checkpoints.remove(index);
        if let Err(error) = self.save() {
            self.entry.checkpoints.insert(index, kept);
            return Err(error);
        }
        self.publish_checkpoints();
        self.runtime.remove_snapshot(&self.sandbox.id, name).await
    }

    fn publish_checkpoints(&self) {
        let checkpoints = self.entry.checkpoints.clone().into();
        self.status.send_modify(|status| status.checkpoints = checkpoints);
    }
}
