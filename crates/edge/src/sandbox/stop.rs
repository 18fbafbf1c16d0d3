//! The last part of an actor's life: the runtime removes every trace, the edge forgets, the callers are told.
//!
//! The runtime is asked until it has done it. Callers who wait are told of each failure and may ask again.

use std::time::Duration;

use api::{
    Code, Error, Result, limit,
    state::{Event, State},
};

use tracing::Instrument;

use super::{Actor, Command};

const RETRY_MS_MIN: u64 = 200;
const RETRY_MS_MAX: u64 = 30_000;

impl Actor {
    /// From `stopping` to gone.
    #[tracing::instrument(level = "debug", name = "edge.stop", skip_all, fields(sandbox_id = %self.sandbox.id))]
    pub(super) async fn reap(mut self) {
        if self.machine.state() != State::Stopping {
            tracing::error!(sandbox = %self.sandbox.id, state = ?self.machine.state(), "reaped out of turn");
            return;
        }
        // A failure is logged; an entry in an older state is cleaned up after a restart all the same.
        let _ = self.save();
        // Before their processes are killed, so that nobody wonders why they are.
        self.sandbox.execs.sandbox_ended();
        let mut retry_ms = RETRY_MS_MIN;
        while let Err(error) = self.remove_traces().await {
            tracing::error!(sandbox = %self.sandbox.id, %error, "stop failed, will be tried again");
            self.answer(&Err(error));
            if !self.wait_retry(retry_ms).await {
                return;
            }
            retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
        }
        self.sandbox.execs.remove_all().instrument(tracing::debug_span!("edge.spool")).await;
        if let Err(error) = self.parts.ledger.remove(&self.sandbox.id) {
            tracing::error!(sandbox = %self.sandbox.id, %error, "ledger: an entry stays until the next start");
        }
        // Legal from `stopping`, where we are: cannot fail.
        let _ = self.step(Event::Reaped);
        self.parts.registry.leave(&self.sandbox);
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            self.on_late_command(command);
        }
        let Actor { failed, stop_waiters, _reservation, _use, .. } = self;
        // Its share of the node is free before anybody hears of it.
        drop((_reservation, _use));
        answer(stop_waiters, failed, &Ok(()));
    }

    /// Asks the runtime, and listens meanwhile.
    async fn remove_traces(&mut self) -> Result<()> {
        let Some(record) = self.lock_record().clone() else { return Ok(()) };
        let (runtime, id) = (self.runtime.clone(), self.sandbox.id.clone());
        let removal = async move {
            let deadline = Duration::from_millis(limit::STOP_MS_MAX);
            tokio::time::timeout(deadline, runtime.stop(&id, &record)).await.unwrap_or_else(|_| {
                let message = format!("{id} is still being removed after {} ms", limit::STOP_MS_MAX);
                Err(Error::new(Code::DeadlineExceeded, message).retry_after_ms(1000))
            })
        };
        tokio::pin!(removal);
        loop {
            tokio::select! {
                removed = &mut removal => return removed,
                Some(command) = self.commands.recv() => self.on_late_command(command),
            }
        }
    }

    /// Until the time is up or somebody asks again. False: the edge leaves; the ledger has the rest.
    async fn wait_retry(&mut self, retry_ms: u64) -> bool {
        let sleep = tokio::time::sleep(Duration::from_millis(retry_ms));
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = &mut sleep => return true,
                command = self.commands.recv() => match command {
                    None | Some(Command::Leave(_)) => return false,
                    Some(command) => {
                        let again = matches!(command, Command::Stop(_));
                        self.on_late_command(command);
                        if again {
                            return true;
                        }
                    }
                },
            }
        }
    }

    /// A stop joins those who wait, a new TTL is refused, a leave waits for the end.
    fn on_late_command(&mut self, command: Command) {
        self.on_command(command);
    }

    fn answer(&mut self, result: &Result<()>) {
        answer(std::mem::take(&mut self.stop_waiters), self.failed.take(), result);
    }
}

type Waiter = tokio::sync::oneshot::Sender<Result<()>>;

/// Callers who have left are no concern.
fn answer(stops: Vec<Waiter>, failed: Option<(Waiter, Error)>, result: &Result<()>) {
    for waiter in stops {
        let _ = waiter.send(result.clone());
    }
    if let Some((waiter, error)) = failed {
        let _ = waiter.send(Err(error));
    }
}
