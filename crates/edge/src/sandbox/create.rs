//! The first part of an actor's life: waiting for a turn, having the runtime make the sandbox, writing the ledger.
//!
//! Stop, deadline and TTL changes are heard all along. A stop while the runtime works waits for the runtime, then takes
//! down what it made: a half-made sandbox is never left to chance.

use std::{sync::Arc, time::Duration};

use api::{
    Code, Error, Result, limit,
    state::{Event, State},
};
use runtime::{Handle, Plan, Record};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use super::Actor;
use crate::gate::Place;

/// Ends its task when it is dropped.
struct Making(JoinHandle<Result<Handle>>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Actor {
    /// None: it is not to live; the state is `stopping`.
    pub(super) async fn create(
        &mut self,
        plan: Plan,
        place: Place,
        ready: oneshot::Sender<Result<()>>,
    ) -> Option<Handle> {
        let deadline = Instant::now() + Duration::from_millis(limit::CREATE_MS_MAX);
        let made = match self.wait_turn(&place, deadline).await {
            Ok(_turn) => self.make(plan, deadline).await,
            Err(error) => Err(error),
        };
        match made.and_then(|handle| self.admit(handle)) {
            Ok(handle) => {
                // The caller may have left; the sandbox stays until its TTL.
                let _ = ready.send(Ok(()));
                Some(handle)
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "create failed");
                if self.machine.state() == State::Creating {
                    // Legal from `creating`: cannot fail.
                    let _ = self.step(Event::Failed);
                }
                self.failed = Some((ready, error));
                None
            }
        }
    }

    fn stopped(&self) -> Error {
        Error::new(Code::SandboxGone, format!("{} was stopped while it was being created", self.sandbox.id))
    }

    fn late() -> Error {
        let message = format!("the sandbox was not ready within {} ms", limit::CREATE_MS_MAX);
        Error::new(Code::DeadlineExceeded, message).retry_after_ms(1000)
    }

    pub(super) async fn wait_turn(
        &mut self,
        place: &Place,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit> {
        loop {
            tokio::select! {
                turn = place.turn() => return turn.ok_or_else(|| self.stopped()),
                Some(command) = self.commands.recv() => if self.on_command(command) {
                    return Err(self.stopped());
                },
                () = sleep_until(self.deadline) => {
                    self.begin_stop();
                    return Err(self.stopped());
                }
                () = sleep_until(deadline) => return Err(Self::late()),
            }
        }
    }

    fn start_making(&self, plan: Plan) -> Making {
        let (runtime, parts) = (self.runtime.clone(), self.parts.clone());
        let (entry, slot) = (self.entry.clone(), self.record.clone());
        let making = async move {
            let failed = Arc::new(std::sync::Mutex::new(None));
            let note = |record: &Record| {
                let mut entry = entry.clone();
                entry.record = record.clone();
                if let Err(error) = parts.ledger.write(&entry) {
                    *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                }
                *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(record.clone());
            };
            let handle = runtime.create(&plan, &note).await?;
            if let Some(error) = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
                tracing::error!(sandbox = %plan.id, %error, "ledger: cannot be written");
                *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(handle.record);
                return Err(Error::internal("the node cannot write its ledger"));
            }
            Ok(handle)
        };
        Making(tokio::spawn(making.in_current_span()))
    }

    pub(super) async fn make(&mut self, plan: Plan, deadline: Instant) -> Result<Handle> {
        let mut making = self.start_making(plan);
        loop {
            let stopping = self.machine.state() == State::Stopping;
            tokio::select! {
                made = &mut making.0 => {
                    let handle = made.map_err(|error| {
                        tracing::error!(sandbox = %self.sandbox.id, %error, "create panicked");
                        Error::internal("the sandbox could not be created")
                    })??;
                    *self.lock_record() = Some(handle.record.clone());
                    return if stopping { Err(self.stopped()) } else { Ok(handle) };
                }
                Some(command) = self.commands.recv() => drop(self.on_command(command)),
                () = sleep_until(self.deadline), if !stopping => drop(self.begin_stop()),
                () = sleep_until(deadline) => {
                    making.0.abort();
                    // What it noted so far is taken down next; nothing of it may still be at work then.
                    let _ = (&mut making.0).await;
                    return Err(Self::late());
                }
            }
        }
    }

    /// It runs: into the ledger first, so that what the caller is told of is found again.
    #[tracing::instrument(level = "debug", name = "edge.ledger", skip_all)]
    pub(super) fn admit(&mut self, handle: Handle) -> Result<Handle> {
        self.entry.state = State::Running;
        self.entry.rolling_back = None;
        self.save()?;
        // First the way inside, so that nobody finds it running without one.
        self.publish_inside(Some(handle.chronus.clone()));
        self.step(Event::Started)?;
        Ok(handle)
    }
}
