//! Running commands: the table of execs, alive and remembered.
//!
//! ```text
//! start --launch--> Exec --run (exit, timeout)--> ended --evicted when too many are remembered--> gone
//!                    |-- collect: stdout, stderr -> Log (bounded, held until acknowledged)
//!                    |-- feed: stdin queue -> pipe
//!                    '-- attach: Log -> any number of clients
//! ```
//! Invariant: an exec never depends on a client; it only waits for room in its logs.

pub mod attach;
pub mod cgroup;
pub mod collect;
pub mod feed;
pub mod launch;
pub mod log;
pub mod run;
pub mod signal;

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use api::{
    Code, Error, ExecId, Result,
    arrow::ExecStream,
    exec::{AttachQuery, Command, ExecInfo, ExecRequest, Exit},
    frame::Stream,
    limit,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, watch},
};

use self::{cgroup::Cgroups, feed::Feed, log::Log};
use crate::{inside::Inside, process::Process};

/// One run of a command.
pub struct Exec {
    pub id: ExecId,
    command: Command,
    started: Instant,
    started_ms: u64,
    idempotency_key: Option<String>,
    pub(crate) pty: bool,
    pub(crate) cgroup: cgroup::Cgroup,
    state: Mutex<State>,
    /// Something to send: output, the exit.
    changed: Notify,
    /// Room in a log.
    room: Notify,
    /// Something for stdin, or room in its queue.
    fed: Notify,
    /// True when the process has ended.
    exited: watch::Sender<bool>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) logs: [Log; 2],
    pub(crate) exit: Option<Exit>,
    pub(crate) feed: Feed,
    pub(crate) process: Option<Arc<Process>>,
    /// The master of the terminal, while the process lives.
    pub(crate) terminal: Option<Arc<AsyncFd<OwnedFd>>>,
}

impl Exec {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // One thread and no code that panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn duration_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn is_live(&self) -> bool {
        self.state().exit.is_none()
    }

    /// What is known of it.
    pub fn info(&self) -> ExecInfo {
        let state = self.state();
        ExecInfo {
            exec_id: self.id.clone(),
            command: self.command.clone(),
            started_ms: self.started_ms,
            exit: state.exit,
            stdout_bytes: state.logs[0].end(),
            stderr_bytes: state.logs[1].end(),
            pty: self.pty,
        }
    }
}

pub(crate) fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

#[derive(Default)]
struct Known {
    execs: BTreeMap<ExecId, Arc<Exec>>,
    keys: HashMap<String, ExecId>,
}

/// Every exec of a sandbox that can still be asked for.
pub struct Table {
    inside: Arc<Inside>,
    cgroups: Arc<Cgroups>,
    known: Mutex<Known>,
    /// Held while a run with a key starts, so that its twin waits for it.
    keyed: tokio::sync::Mutex<()>,
}

impl Table {
    pub fn new(inside: Arc<Inside>) -> Self {
        let cgroups = Arc::new(Cgroups::new(inside.cgroup_box.clone()));
        Self { inside, cgroups, known: Mutex::default(), keyed: tokio::sync::Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it and attaches; with a known key, attaches to that run.
    pub async fn start(self: &Arc<Self>, request: ExecRequest) -> Result<ExecStream> {
        let table = self.clone();
        // In a task of its own: a client that leaves half-way must not leave half a start.
        let started = tokio::spawn(async move { table.ensure(request).await }).await;
        let exec = started.map_err(|e| {
            eprintln!("aether: start: {e}");
            Error::internal("the start of the command failed")
        })??;
        Ok(attach::attach(exec, AttachQuery::default()))
    }

    async fn ensure(&self, request: ExecRequest) -> Result<Arc<Exec>> {
        let Some(key) = request.idempotency_key.clone() else { return self.launch(request).await };
        let _one_at_a_time = self.keyed.lock().await;
        let recorded = {
            let known = self.known();
            known.keys.get(&key).and_then(|id| known.execs.get(id)).cloned()
        };
        match recorded {
            Some(exec) => Ok(exec),
            None => self.launch(request).await,
        }
    }

    async fn launch(&self, request: ExecRequest) -> Result<Arc<Exec>> {
        self.make_room()?;
        self.cgroups.sweep();
        let cgroup = self.cgroups.make()?;
        let oom_kills = self.inside.oom_kills();
        let started = Instant::now();
        let launched = launch::launch(&self.inside, &cgroup, &request).await?;
        let (exited, _) = watch::channel(false);
        let exec = Arc::new(Exec {
            id: ExecId::new(),
            started,
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            idempotency_key: request.idempotency_key.clone(),
            pty: request.pty.is_some(),
            command: request.command,
            cgroup,
            state: Mutex::default(),
            changed: Notify::new(),
            room: Notify::new(),
            fed: Notify::new(),
            exited,
        });
        let mut known = self.known();
        known.execs.insert(exec.id.clone(), exec.clone());
        if let Some(key) = request.idempotency_key {
            known.keys.insert(key, exec.id.clone());
        }
        drop(known);
        run::run(exec.clone(), self.inside.clone(), launched, request.stdin, request.timeout_ms, oom_kills);
        Ok(exec)
    }

    /// Forgets the oldest of those that have ended, and refuses when too many live.
    fn make_room(&self) -> Result<()> {
        let mut known = self.known();
        let ended: Vec<ExecId> =
            known.execs.values().filter(|e| !e.is_live()).map(|e| e.id.clone()).collect();
        let live = known.execs.len() - ended.len();
        for id in ended.iter().take((ended.len() + 1).saturating_sub(limit::EXECS_REMEMBERED_MAX)) {
            if let Some(key) = known.execs.remove(id).and_then(|e| e.idempotency_key.clone()) {
                known.keys.remove(&key);
            }
        }
        if live >= limit::EXECS_LIVE_MAX {
            return Err(Error::new(
                Code::QuotaExceeded,
                format!("{live} commands run in this sandbox, the most at once: wait for one or end one"),
            ));
        }
        Ok(())
    }

    /// Errors: `not_found`.
    pub fn find(&self, id: &ExecId) -> Result<Arc<Exec>> {
        self.known().execs.get(id).cloned().ok_or_else(|| {
            Error::not_found(format!("exec {id} is unknown here, or ended so long ago that it was forgotten"))
        })
    }

    pub fn list(&self) -> Vec<ExecInfo> {
        self.known().execs.values().map(|e| e.info()).collect()
    }
}
