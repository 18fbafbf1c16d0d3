//! One sandbox as the rest of the edge sees it: what does not change, the latest status, and the way to its actor.
//!
//! Its actor, a task, owns everything that changes. It publishes a [`Status`] and takes [`Command`]s.

mod actor;
mod chronus;
mod create;
pub(crate) mod disk;
mod exec;
mod machine;
mod rollback;
mod stop;

use std::{path::Path, sync::Arc, time::Duration};

use api::{
    Code, Error, Result, SandboxId,
    arrow::Chronus,
    image::ImageConfig,
    limit,
    spec::{SandboxInfo, SandboxSpec},
    state::State,
};
use runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use actor::{Actor, Begin};
use chronus::SandboxChronus;
use disk::{DiskCommand, Kept};
use exec::Execs;

use crate::ledger::{Entry, EntryKey};

/// Callers who wait for one sandbox's actor.
const COMMANDS_IN_FLIGHT: usize = 64;

/// Tries to list the execs of an adopted sandbox.
const RECOVER_TRIES_MAX: u32 = 5;
const RECOVER_DELAY_MS: u64 = 50;

/// What changes.
#[derive(Clone)]
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
    pub(crate) expires_ms: u64,
    /// Oldest first.
    checkpoints: Arc<[Kept]>,
    /// The way inside, while it runs.
    chronus: Option<Arc<dyn Chronus>>,
}

/// What an actor can be asked.
pub(crate) enum Command {
    /// Answered when nothing is left.
    Stop(oneshot::Sender<Result<()>>),
    SetTtl {
        ttl_ms: u64,
        done: oneshot::Sender<Result<()>>,
    },
    Disk(DiskCommand),
    /// The edge goes: leave the sandbox as it is. Answered, by being dropped, when the actor has ended.
    Leave(oneshot::Sender<()>),
}

/// See the module.
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) spec: SandboxSpec,
    /// The id of the project that it belongs to.
    pub(crate) project: String,
    /// Of the quota that was taken for it.
    pub(crate) reservation: Option<String>,
    pub(crate) key: Option<EntryKey>,
    layers: Vec<String>,
    images: Vec<String>,
    config: ImageConfig,
    created_ms: u64,
    status: watch::Receiver<Status>,
    commands: mpsc::Sender<Command>,
    execs: Arc<Execs>,
}

/// The actor's ends of a sandbox's channels.
pub(crate) struct Ends {
    status: watch::Sender<Status>,
    commands: mpsc::Receiver<Command>,
}

impl Sandbox {
    /// The sandbox of a ledger entry, and what its actor needs.
    pub(crate) fn new(entry: &Entry, spool_dir: &Path) -> (Arc<Self>, Ends) {
        let status = Status {
            state: entry.state,
            reason: None,
            expires_ms: entry.expires_ms,
            checkpoints: entry.checkpoints.clone().into(),
            chronus: None,
        };
        let (status, latest) = watch::channel(status);
        let (sender, commands) = mpsc::channel(COMMANDS_IN_FLIGHT);
        let sandbox = Self {
            id: entry.id.clone(),
            spec: entry.spec.clone(),
            project: entry.project.clone(),
            reservation: entry.reservation.clone(),
            key: entry.key.clone(),
            layers: entry.layers.clone(),
            images: entry.images.clone(),
            config: entry.config.clone(),
            created_ms: entry.created_ms,
            status: latest,
            commands: sender,
            execs: Arc::new(Execs::new(spool_dir, &entry.id)),
        };
        (Arc::new(sandbox), Ends { status, commands })
    }

    pub(crate) fn info(&self) -> SandboxInfo {
        let status = self.status.borrow().clone();
        SandboxInfo {
            id: self.id.clone(),
            state: status.state,
            reason: status.reason,
            spec: self.spec.clone(),
            project: self.project.clone(),
            layers: self.layers.clone(),
            created_ms: self.created_ms,
            expires_ms: status.expires_ms,
            execs_live: self.execs.live(),
        }
    }

    /// Answers when nothing is left of it. It may be asked in any state, by many at once. Errors: `deadline_exceeded`,
    /// or why the runtime could not; the actor goes on trying.
    pub(crate) async fn stop(&self) -> Result<()> {
        let (done, answer) = oneshot::channel();
        let ask = async {
            if self.commands.send(Command::Stop(done)).await.is_err() {
                return Ok(());
            }
            // An actor that ended without a word has reaped before it saw this command.
            answer.await.unwrap_or(Ok(()))
        };
        let deadline = Duration::from_millis(limit::STOP_MS_MAX);
        tokio::time::timeout(deadline, ask).await.unwrap_or_else(|_| {
            let message = format!("{} is still being removed after {} ms", self.id, limit::STOP_MS_MAX);
            Err(Error::new(Code::DeadlineExceeded, message).retry_after_ms(1000))
        })
    }

    /// Errors: `sandbox_gone` where it is being stopped.
    pub(crate) async fn set_ttl(&self, ttl_ms: u64) -> Result<SandboxInfo> {
        let (done, answer) = oneshot::channel();
        if self.commands.send(Command::SetTtl { ttl_ms, done }).await.is_err() {
            return Err(self.gone());
        }
        answer.await.map_err(|_| self.gone())??;
        Ok(self.info())
    }

    /// Waits until its actor has ended, the sandbox untouched.
    pub(crate) async fn leave(&self) {
        let (done, ended) = oneshot::channel();
        if self.commands.send(Command::Leave(done)).await.is_ok() {
            // Its end is the answer.
            let _ = ended.await;
        }
    }

    /// After a restart: finds its execs again, through a handle that the actor will own.
    pub(crate) async fn recover_execs(&self, handle: &Handle) {
        let mut delay_ms = RECOVER_DELAY_MS;
        for _ in 0..RECOVER_TRIES_MAX {
            match self.execs.recover(&handle.chronus).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(sandbox = %self.id, %error, "recover: its agent does not list execs")
                }
            }
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            delay_ms *= 2;
        }
        tracing::error!(sandbox = %self.id, "recover: its execs are lost; it runs on");
    }

    fn gone(&self) -> Error {
        Error::new(Code::SandboxGone, format!("{} is being stopped", self.id))
    }

    /// The way inside, if there is one now. Errors: `conflict`, `sandbox_broken`, `sandbox_gone`.
    fn inside(&self) -> Result<Arc<dyn Chronus>> {
        let status = self.status.borrow();
        match (status.state, &status.chronus) {
            (State::Running, Some(chronus)) => Ok(chronus.clone()),
            (State::Running | State::Creating, _) => {
                Err(Error::new(Code::Conflict, format!("{} is not running yet", self.id)))
            }
            (State::Broken, _) => {
                let why = status.reason.as_deref().unwrap_or("its processes are lost");
                Err(Error::new(Code::SandboxBroken, format!("{} is broken: {why}", self.id)))
            }
            (State::Stopping | State::Gone, _) => Err(self.gone()),
        }
    }

    /// The service of what is inside. Errors: as [`Sandbox::inside`].
    pub(crate) fn chronus(self: &Arc<Self>) -> Result<Arc<dyn Chronus>> {
        self.inside()?;
        Ok(Arc::new(SandboxChronus::new(self.clone())))
    }
}
