//! The actor of one sandbox: the only task that moves its state, writes its ledger entry, and calls the runtime for it.
//!
//! ```text
//! run: create | adopt -> live (commands, deadline, death) -> reap (stop.rs) -> gone
//! ```

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use api::{
    Error, Result,
    arrow::Chronus,
    state::{Event, State},
};
use runtime::{Handle, Plan, Record, Runtime};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tracing::{Instrument, Span};

use super::{Command, Ends, Sandbox, Status, disk::DiskCommand, machine::Machine, rollback::RolledBack};
use crate::{admission::Reservation, clock::now_ms, gate::Place, ledger::Entry, node::Parts, uses::Use};

/// Where an actor starts.
pub(crate) enum Begin {
    Create {
        plan: Box<Plan>,
        place: Place,
        ready: oneshot::Sender<Result<()>>,
        /// The request that it is made for.
        span: Span,
    },
    /// It lives already.
    Adopt(Handle),
    /// Nothing of its processes is left, and it is to be made again from this checkpoint.
    RollBack(String),
    /// It may live, but cannot be reached.
    Broken(String),
    /// What an earlier edge left.
    Reap,
}

pub(crate) struct Actor {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) parts: Arc<Parts>,
    pub(super) machine: Machine,
    pub(super) entry: Entry,
    /// What the runtime said of its traces; None: there are none yet.
    pub(super) record: Arc<Mutex<Option<Record>>>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) stop_waiters: Vec<oneshot::Sender<Result<()>>>,
    /// Who waits for a create that failed, and why it did: told when its undo is done.
    pub(super) failed: Option<(oneshot::Sender<Result<()>>, Error)>,
    pub(super) status: watch::Sender<Status>,
    pub(super) deadline: Instant,
    leaving: Vec<oneshot::Sender<()>>,
    pub(super) _reservation: Reservation,
    pub(super) _use: Use,
}

/// Tells of the death of the processes; None where nobody would.
type Ended = Option<watch::Receiver<Option<String>>>;

/// How long a live sandbox goes on being one.
enum Lived {
    /// It is to be stopped.
    Over,
    /// The edge leaves it.
    Left,
}

fn instant_of(expires_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(expires_ms.saturating_sub(now_ms()))
}

impl Actor {
    /// An actor for a sandbox that has entered the registry. `record`: the runtime's, where it has traces.
    pub(crate) fn new(
        (sandbox, ends): (Arc<Sandbox>, Ends),
        (entry, record): (Entry, Option<Record>),
        (runtime, parts): (Arc<dyn Runtime>, Arc<Parts>),
        (reservation, images): (Reservation, Use),
    ) -> Self {
        Self {
            machine: Machine::new(sandbox.id.clone(), entry.state),
            sandbox,
            runtime,
            parts,
            deadline: instant_of(entry.expires_ms),
            entry,
            record: Arc::new(Mutex::new(record)),
            commands: ends.commands,
            stop_waiters: Vec::new(),
            failed: None,
            status: ends.status,
            leaving: Vec::new(),
            _reservation: reservation,
            _use: images,
        }
    }

    /// Starts its life. What it can say at once is said before this returns.
    pub(crate) fn start(self, begin: Begin) {
        match &begin {
            Begin::Adopt(handle) => {
                *self.lock_record() = Some(handle.record.clone());
                self.publish_inside(Some(handle.chronus.clone()));
            }
            Begin::Broken(why) => self.set_reason(why.clone()),
            Begin::Create { .. } | Begin::RollBack(_) | Begin::Reap => {}
        }
        tokio::spawn(self.run(begin));
    }

    async fn run(mut self, begin: Begin) {
        let ended = match begin {
            Begin::Create { plan, place, ready, span } => {
                let made = self.create(*plan, place, ready).instrument(span).await;
                match made {
                    Some(handle) => Some(handle.ended),
                    None => return self.reap().await,
                }
            }
            Begin::Adopt(handle) => Some(handle.ended),
            Begin::RollBack(checkpoint) => match self.finish_rollback(&checkpoint).await {
                Some(handle) => Some(handle.ended),
                None => return self.reap().await,
            },
            Begin::Broken(_) => None,
            Begin::Reap => {
                if self.machine.state() != State::Stopping && self.step(Event::Stop).is_err() {
                    return;
                }
                return self.reap().await;
            }
        };
        match self.live(ended).await {
            Lived::Over => self.reap().await,
            Lived::Left => self.sandbox.execs.leave().await,
        }
    }

    pub(super) fn lock_record(&self) -> std::sync::MutexGuard<'_, Option<Record>> {
        self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Moves the state and publishes it.
    pub(super) fn step(&mut self, event: Event) -> Result<()> {
        let state = self.machine.apply(event)?;
        self.entry.state = state;
        self.status.send_modify(|status| {
            status.state = state;
            if state != State::Running {
                status.chronus = None;
            }
        });
        Ok(())
    }

    pub(super) fn publish_inside(&self, chronus: Option<Arc<dyn Chronus>>) {
        self.status.send_modify(|status| status.chronus = chronus);
    }

    fn set_reason(&self, why: String) {
        self.status.send_modify(|status| status.reason = Some(why));
    }

    /// Writes the entry, where the sandbox has traces that it must lead to.
    pub(super) fn save(&mut self) -> Result<()> {
        let Some(record) = self.lock_record().clone() else { return Ok(()) };
        self.entry.record = record;
        self.parts.ledger.write(&self.entry).map_err(|error| {
            tracing::error!(sandbox = %self.sandbox.id, %error, "ledger: cannot be written");
            Error::internal("the node cannot write its ledger")
        })
    }

    /// True: it is now to be stopped.
    pub(super) fn on_command(&mut self, command: Command) -> bool {
        match command {
            Command::Stop(done) => {
                self.stop_waiters.push(done);
                self.begin_stop()
            }
            Command::SetTtl { ttl_ms, done } => {
                // The caller may have left.
                let _ = done.send(self.set_ttl(ttl_ms));
                false
            }
            Command::Disk(command) => {
                // Where it runs, `live` has taken it.
                let error = self.sandbox.inside().err();
                command.refuse(error.unwrap_or_else(|| self.sandbox.gone()));
                false
            }
            Command::Leave(done) => {
                self.leaving.push(done);
                false
            }
        }
    }

    /// From any state of a living sandbox to `stopping`.
    pub(super) fn begin_stop(&mut self) -> bool {
        self.machine.state() == State::Stopping || self.step(Event::Stop).is_ok()
    }

    /// The deadline is moved in the ledger first: what a caller was promised holds after a restart.
    fn set_ttl(&mut self, ttl_ms: u64) -> Result<()> {
        if self.machine.state() == State::Stopping {
            return Err(self.sandbox.gone());
        }
        let (before, expires_ms) = (self.entry.expires_ms, now_ms().saturating_add(ttl_ms));
        self.entry.expires_ms = expires_ms;
        // While it is being created the create writes the entry, at its end with this deadline.
        if self.machine.state() != State::Creating
            && let Err(error) = self.save()
        {
            self.entry.expires_ms = before;
            return Err(error);
        }
        self.deadline = Instant::now() + Duration::from_millis(ttl_ms);
        self.status.send_modify(|status| status.expires_ms = expires_ms);
        Ok(())
    }

    async fn live(&mut self, mut ended: Ended) -> Lived {
        loop {
            if !self.leaving.is_empty() {
                return Lived::Left;
            }
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Disk(command)) if self.machine.state() == State::Running => {
                        if self.on_disk(command, &mut ended).await {
                            return Lived::Over;
                        }
                    }
                    Some(command) => if self.on_command(command) {
                        return Lived::Over;
                    },
                    None => return Lived::Left,
                },
                () = tokio::time::sleep_until(self.deadline) => {
                    tracing::info!(sandbox = %self.sandbox.id, "its time is over");
                    if self.begin_stop() {
                        return Lived::Over;
                    }
                }
                why = death(&mut ended) => {
                    ended = None;
                    self.broke(why);
                }
            }
        }
    }

    /// True: it is now to be stopped. `ended` is that of the processes it has afterwards.
    async fn on_disk(&mut self, command: DiskCommand, ended: &mut Ended) -> bool {
        let DiskCommand::Rollback { checkpoint, done } = command else {
            self.on_disk_command(command).await;
            return false;
        };
        match self.rollback(checkpoint, done).await {
            RolledBack::Again(handle) => *ended = Some(handle.ended),
            RolledBack::Refused => {}
            RolledBack::Over => return true,
        }
        false
    }

    fn broke(&mut self, why: String) {
        tracing::warn!(sandbox = %self.sandbox.id, why, "broken");
        self.set_reason(why);
        if self.step(Event::Broke).is_ok() {
            // A failure is logged; after a restart the runtime tells that it is dead all the same.
            let _ = self.save();
            self.sandbox.execs.sandbox_ended();
        }
    }
}

/// Waits for the death of the sandbox; forever where nobody would tell.
async fn death(ended: &mut Ended) -> String {
    let Some(ended) = ended else { return std::future::pending().await };
    match ended.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        Err(_) => "the node lost sight of its processes".into(),
    }
}
