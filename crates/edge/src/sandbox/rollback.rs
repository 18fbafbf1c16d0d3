//! Rollback: a running sandbox goes back to `creating` and is made again, its disk a copy of a checkpoint.
//!
//! The ledger names the checkpoint from before the first process is killed until it runs again, so an edge that finds
//! such an entry does it again. Where it cannot be made again the sandbox ends, as after a create that failed.

use std::time::Duration;

use api::{
    Error, Result, limit,
    state::{Event, State},
};
use runtime::{Handle, Plan};
use tokio::{sync::oneshot, time::Instant};

use super::Actor;
use crate::plan;

/// How a rollback went on.
pub(super) enum RolledBack {
    Again(Handle),
    /// It could not begin: the sandbox is as it was.
    Refused,
    /// The state is `stopping`.
    Over,
}

impl Actor {
    #[tracing::instrument(level = "debug", name = "edge.rollback", skip_all, fields(sandbox_id = %self.sandbox.id))]
    pub(super) async fn rollback(
        &mut self,
        checkpoint: String,
        done: oneshot::Sender<Result<()>>,
    ) -> RolledBack {
        let deadline = Instant::now() + Duration::from_millis(limit::CREATE_MS_MAX);
        let prepared = async {
            let plan = self.plan_again(&checkpoint).await?;
            Ok((plan, self.parts.gate.enter()?))
        };
        let (plan, place) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = done.send(Err(error));
                return RolledBack::Refused;
            }
        };
        let _turn = match self.wait_turn(&place, deadline).await {
            Ok(turn) => turn,
            Err(error) => {
                let _ = done.send(Err(error));
                return if self.machine.state() == State::Running {
                    RolledBack::Refused
                } else {
                    RolledBack::Over
                };
            }
        };
        self.entry.rolling_back = Some(checkpoint);
        self.entry.state = State::Creating;
        if let Err(error) = self.save() {
            (self.entry.rolling_back, self.entry.state) = (None, State::Running);
            let _ = done.send(Err(error));
            return RolledBack::Refused;
        }
        // Legal from `running`, where we are: cannot fail.
        let _ = self.step(Event::RolledBack);
        let record = self.lock_record().clone().unwrap_or_default();
        // Before their processes are killed, so that nobody wonders why they are.
        self.sandbox.execs.sandbox_ended();
        let reset = self.runtime.reset(&self.sandbox.id, &record).await;
        self.sandbox.execs.begin_again().await;
        match self.remake(reset, plan, deadline).await {
            Ok(handle) => {
                let _ = done.send(Ok(()));
                RolledBack::Again(handle)
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "rollback failed: it ends");
                if self.machine.state() == State::Creating {
                    let _ = self.step(Event::Failed);
                }
                self.failed = Some((done, error));
                RolledBack::Over
            }
        }
    }

    /// From `creating`, once nothing of its processes is left.
    async fn remake(&mut self, reset: Result<()>, plan: Plan, deadline: Instant) -> Result<Handle> {
        reset?;
        let handle = self.make(plan, deadline).await?;
        self.admit(handle)
    }

    /// The plan that it was made by, its disk a copy of the checkpoint.
    pub(super) async fn plan_again(&self, checkpoint: &str) -> Result<Plan> {
        let disk = self.sandbox.checkpoint_path(checkpoint)?;
        let composition =
            plan::again(&self.parts.layers, &self.sandbox, &self.sandbox.spec, Some(disk)).await?;
        Ok(plan::plan_sandbox(&self.sandbox.id, &self.sandbox.spec, &composition))
    }

    /// After a restart in the middle of a rollback, its processes gone. None: it is not to live.
    pub(super) async fn finish_rollback(&mut self, checkpoint: &str) -> Option<Handle> {
        let deadline = Instant::now() + Duration::from_millis(limit::CREATE_MS_MAX);
        let made = match self.plan_again(checkpoint).await {
            Ok(plan) => self.remake(Ok(()), plan, deadline).await,
            Err(error) => Err(error),
        };
        let told = |error: &Error| tracing::error!(sandbox = %self.sandbox.id, %error, "rollback failed after a restart");
        match made.inspect_err(told) {
            Ok(handle) => Some(handle),
            Err(_) => {
                if self.machine.state() == State::Creating {
                    let _ = self.step(Event::Failed);
                }
                None
            }
        }
    }
}
