//! The execs of one sandbox: the live ones and those remembered.
//!
//! An edge ends aether's stream of each exec here: a pump takes the frames into the run's log, clients read the log.
//! So a client comes and goes without aether or the command noticing, and an edge comes and goes without the client
//! losing a byte.
//!
//! A key names a run: the first request with it starts the run, the others attach to it, also while it starts. Ended
//! runs are remembered up to a count and a number of bytes; the oldest are forgotten first, with their keys.

mod client;
mod log;
mod pump;
mod record;
mod spool;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    Code, Error, ExecId, Result, SandboxId,
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, Command, ExecInfo, ExecRequest, SignalRequest},
    frame::ClientFrame,
    limit,
};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::clock::now_ms;
use log::Log;
use pump::Pump;
use record::{RunKey, RunRecord};
use spool::Shape;

/// From asking aether to its answer. A start is one fork; a sandbox that is out of processes may stall it.
const START_MS_MAX: u64 = 10_000;
/// Bytes of ended execs that a sandbox may keep on the node's disk.
const REMEMBERED_BYTES_MAX: u64 = 64 << 20;
/// Live commands of a sandbox that keep their output in full; further ones keep less of it.
const CROWDED_FROM: usize = 16;
/// For the pumps of a sandbox that ended to write their last words.
const SETTLE_MS_MAX: u64 = 5000;

/// Where a client's frames go.
#[derive(Debug, Clone)]
enum Input {
    Connected(mpsc::Sender<ClientFrame>),
    /// The pump attaches again.
    Lost,
    Ended,
}

/// What the pumps are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// Nothing of the sandbox runs any more.
    SandboxEnded,
    /// The edge goes; the sandbox lives on.
    Leaving,
}

/// One run of a command.
struct Run {
    id: ExecId,
    command: Command,
    started_ms: u64,
    pty: bool,
    key: Option<RunKey>,
    log: Arc<Log>,
    input: watch::Sender<Input>,
    /// Standard output, standard error, the record.
    paths: [PathBuf; 3],
    shape: Shape,
}

impl Run {
    fn info(&self) -> ExecInfo {
        let [stdout_bytes, stderr_bytes] = self.log.totals();
        ExecInfo {
            exec_id: self.id.clone(),
            command: self.command.clone(),
            started_ms: self.started_ms,
            exit: self.log.exit(),
            stdout_bytes,
            stderr_bytes,
            pty: self.pty,
        }
    }

    /// Bytes that remembering it costs.
    fn bytes(&self) -> u64 {
        let command = match &self.command {
            Command::Shell(text) => text.len(),
            Command::Argv(argv) => argv.iter().map(String::len).sum(),
        };
        self.log.file_bytes() + command as u64
    }
}

enum Key {
    /// Changes, or closes, when the start is decided.
    Starting(RunKey, watch::Receiver<()>),
    Started(RunKey, ExecId),
}

#[derive(Default)]
struct Table {
    runs: BTreeMap<ExecId, Arc<Run>>,
    keys: HashMap<String, Key>,
    starting: usize,
    /// Oldest first, with what each costs. Ids sort by time, so a late record changes nothing of who is forgotten.
    ended: BTreeMap<ExecId, u64>,
    ended_bytes: u64,
}

impl Table {
    fn live(&self) -> usize {
        self.starting + self.runs.values().filter(|r| r.log.exit().is_none()).count()
    }

    fn remember(&mut self, run: &Run) -> Vec<Arc<Run>> {
        self.ended.insert(run.id.clone(), run.bytes());
        self.ended_bytes += run.bytes();
        let mut forgotten = Vec::new();
        while self.ended.len() > limit::EXECS_REMEMBERED_MAX
            || (self.ended_bytes > REMEMBERED_BYTES_MAX && self.ended.len() > 1)
        {
            let Some((id, bytes)) = self.ended.pop_first() else { break };
            self.ended_bytes -= bytes;
            if let Some(run) = self.runs.remove(&id) {
                if let Some(key) = &run.key {
                    self.keys.remove(&key.key);
                }
                forgotten.push(run);
            }
        }
        forgotten
    }
}

/// See the module.
pub(crate) struct Execs {
    dir: PathBuf,
    shape: Shape,
    table: Mutex<Table>,
    end: watch::Sender<End>,
    pumps: TaskTracker,
}

/// What a request with or without a key finds.
enum Claim {
    New(Start),
    Known(Arc<Run>),
    Wait(watch::Receiver<()>),
}

/// The right to start one run. Dropping it gives the place and the key back.
struct Start {
    execs: Arc<Execs>,
    key: Option<RunKey>,
    _decided: watch::Sender<()>,
}

impl Drop for Start {
    fn drop(&mut self) {
        let mut table = self.execs.lock();
        table.starting -= 1;
        if let Some(key) = &self.key
            && matches!(table.keys.get(&key.key), Some(Key::Starting(..)))
        {
            table.keys.remove(&key.key);
        }
    }
}

impl Execs {
    pub(crate) fn new(spool_dir: &Path, sandbox: &SandboxId) -> Self {
        Self {
            dir: spool_dir.join(sandbox.as_str()),
            shape: Shape::SERVICE,
            table: Mutex::default(),
            end: watch::Sender::new(End::No),
            pumps: TaskTracker::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Execs that run now.
    pub(crate) fn live(&self) -> u32 {
        self.lock().live() as u32
    }

    /// Starts a command, or attaches to the run of its key. A caller who leaves in the middle changes nothing.
    /// Errors: `invalid_argument`, `conflict`, `no_capacity`, `deadline_exceeded`, and aether's own.
    #[tracing::instrument(level = "debug", name = "edge.exec", skip_all)]
    pub(crate) async fn exec(
        self: &Arc<Self>,
        request: ExecRequest,
        chronus: Arc<dyn Chronus>,
    ) -> Result<ExecStream> {
        request.validate()?;
        let key = RunKey::of(&request);
        loop {
            match self.claim(key.as_ref())? {
                Claim::Known(run) => return client::attach(&run, AttachQuery::default()),
                Claim::Wait(mut decided) => drop(decided.changed().await),
                Claim::New(start) => {
                    let starting = self.clone().start(request, chronus, start).in_current_span();
                    let started = tokio::spawn(starting).await;
                    return started.map_err(|error| {
                        tracing::error!(%error, "exec: the start panicked");
                        Error::internal("the exec could not be started")
                    })?;
                }
            }
        }
    }

    fn claim(self: &Arc<Self>, key: Option<&RunKey>) -> Result<Claim> {
        let mut table = self.lock();
        let known = key.and_then(|key| table.keys.get(&key.key).map(|known| (key, known)));
        if let Some((key, known)) = known {
            let (Key::Starting(of, _) | Key::Started(of, _)) = known;
            if of.fingerprint != key.fingerprint {
                let message = format!("idempotency_key: `{}` was used for another command", key.key);
                return Err(Error::new(Code::Conflict, message));
            }
            match known {
                Key::Starting(_, decided) => return Ok(Claim::Wait(decided.clone())),
                Key::Started(_, id) => {
                    if let Some(run) = table.runs.get(id) {
                        return Ok(Claim::Known(run.clone()));
                    }
                }
            }
        }
        if table.live() >= limit::EXECS_LIVE_MAX {
            let message = format!("{} execs run in this sandbox already", limit::EXECS_LIVE_MAX);
            return Err(Error::new(Code::NoCapacity, message).retry_after_ms(1000));
        }
        table.starting += 1;
        let (sender, decided) = watch::channel(());
        if let Some(key) = key {
            table.keys.insert(key.key.clone(), Key::Starting(key.clone(), decided));
        }
        Ok(Claim::New(Start { execs: self.clone(), key: key.cloned(), _decided: sender }))
    }

    async fn start(
        self: Arc<Self>,
        request: ExecRequest,
        chronus: Arc<dyn Chronus>,
        start: Start,
    ) -> Result<ExecStream> {
        let (command, pty) = (request.command.clone(), request.pty.is_some());
        // aether knows the key too: if this process dies before it has recorded the run, a second try finds it there.
        let deadline = Duration::from_millis(START_MS_MAX);
        let stream = tokio::time::timeout(deadline, chronus.exec(request)).await.map_err(|_| {
            Error::new(Code::DeadlineExceeded, format!("the command did not start within {START_MS_MAX} ms"))
        })??;
        let known = self.lock().runs.get(&stream.exec_id).cloned();
        let (run, stream) = match known {
            Some(run) => (run, None),
            None => {
                let shape = if self.lock().live() > CROWDED_FROM { Shape::CROWDED } else { self.shape };
                let log = Log::new(shape, self.log_paths(&stream.exec_id));
                (
                    self.new_run(stream.exec_id.clone(), command, now_ms(), pty, start.key.clone(), log),
                    Some(stream),
                )
            }
        };
        // Before the pump, so that it waits for this client from the first byte on.
        let client = client::attach(&run, AttachQuery::default());
        self.register(&run, start.key.clone());
        if stream.is_some() {
            self.spawn_pump(run, chronus, stream);
        }
        client
    }

    fn log_paths(&self, id: &ExecId) -> [PathBuf; 2] {
        let [out, err, _] = record::paths(&self.dir, id);
        [out, err]
    }

    fn new_run(
        &self,
        id: ExecId,
        command: Command,
        started_ms: u64,
        pty: bool,
        key: Option<RunKey>,
        log: Log,
    ) -> Arc<Run> {
        let input = watch::Sender::new(if log.exit().is_some() { Input::Ended } else { Input::Lost });
        let paths = record::paths(&self.dir, &id);
        Arc::new(Run {
            id,
            command,
            started_ms,
            pty,
            key,
            log: Arc::new(log),
            input,
            paths,
            shape: self.shape,
        })
    }

    fn register(&self, run: &Arc<Run>, key: Option<RunKey>) {
        let mut table = self.lock();
        table.runs.insert(run.id.clone(), run.clone());
        if let Some(key) = key {
            table.keys.insert(key.key.clone(), Key::Started(key, run.id.clone()));
        }
    }

    fn spawn_pump(self: &Arc<Self>, run: Arc<Run>, chronus: Arc<dyn Chronus>, stream: Option<ExecStream>) {
        let pump = Pump { run: run.clone(), chronus, end: self.end.subscribe() };
        let execs = self.clone();
        self.pumps.spawn(async move {
            if pump.run(stream).await {
                execs.remember(&run).await;
            }
        });
    }

    async fn remember(&self, run: &Run) {
        let forgotten = self.lock().remember(run);
        if !forgotten.is_empty() {
            let remove = move || forgotten.iter().for_each(|run| record::forget(run));
            // Files that stay go with the sandbox's directory.
            let _ = tokio::task::spawn_blocking(remove).await;
        }
    }

    fn find(&self, id: &ExecId) -> Result<Arc<Run>> {
        let message = || format!("no exec {id} in this sandbox, or it ended and is forgotten");
        self.lock().runs.get(id).cloned().ok_or_else(|| Error::not_found(message()))
    }

    pub(crate) fn attach(&self, id: &ExecId, from: AttachQuery) -> Result<ExecStream> {
        client::attach(&self.find(id)?, from)
    }
    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<ExecInfo> {
        self.lock().runs.values().map(|r| r.info()).collect()
    }
    pub(crate) fn inspect(&self, id: &ExecId) -> Result<ExecInfo> {
        self.find(id).map(|run| run.info())
    }

    /// Errors: `not_found`, `conflict` where it has ended.
    pub(crate) async fn signal(
        &self,
        id: &ExecId,
        request: SignalRequest,
        chronus: &dyn Chronus,
    ) -> Result<()> {
        request.validate()?;
        if self.find(id)?.log.exit().is_some() {
            return Err(Error::new(Code::Conflict, format!("exec {id} has ended")));
        }
        chronus.exec_signal(id.clone(), request).await
    }

    /// After a restart of the edge: what is on disk, and what aether runs.
    pub(crate) async fn recover(self: &Arc<Self>, chronus: &Arc<dyn Chronus>) -> Result<()> {
        let dir = self.dir.clone();
        let records = tokio::task::spawn_blocking(move || record::load(&dir)).await.unwrap_or_default();
        let told = chronus.exec_list().await?;
        for record in records {
            let run = self.recover_run(record);
            if run.log.exit().is_some() {
                self.remember(&run).await;
            } else {
                self.spawn_pump(run, chronus.clone(), None);
            }
        }
        for info in told {
            if self.find(&info.exec_id).is_err() {
                let log = Log::recover(self.shape, self.log_paths(&info.exec_id), [None, None], None);
                let run = self.new_run(info.exec_id, info.command, info.started_ms, info.pty, None, log);
                self.register(&run, None);
                self.spawn_pump(run, chronus.clone(), None);
            }
        }
        Ok(())
    }

    fn recover_run(&self, record: RunRecord) -> Arc<Run> {
        let memory = [record.stdout, record.stderr].map(|payload| payload.map(|p| p.0));
        let log = Log::recover(self.shape, self.log_paths(&record.exec_id), memory, record.exit);
        let RunRecord { exec_id, command, started_ms, pty, key, .. } = record;
        let run = self.new_run(exec_id, command, started_ms, pty, key.clone(), log);
        self.register(&run, key);
        run
    }

    /// Nothing of the sandbox runs any more: live execs end as `sandbox_gone`. Idempotent.
    pub(crate) fn sandbox_ended(&self) {
        self.end.send_replace(End::SandboxEnded);
    }

    /// New ones may come, in a sandbox that is made again. After [`Execs::sandbox_ended`], with no process left.
    pub(crate) async fn begin_again(&self) {
        self.settle().await;
        self.pumps.reopen();
        self.end.send_replace(End::No);
    }

    /// The edge goes: attached clients are let go, nothing is ended.
    pub(crate) async fn leave(&self) {
        self.end.send_if_modified(|end| {
            let first = *end == End::No;
            *end = if first { End::Leaving } else { *end };
            first
        });
        self.settle().await;
    }

    /// Removes all that is remembered of the sandbox. After [`Execs::sandbox_ended`].
    pub(crate) async fn remove_all(&self) {
        self.settle().await;
        let dir = self.dir.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %self.dir.display(), %error, "spool: a directory stays until the next start");
        }
    }

    async fn settle(&self) {
        self.pumps.close();
        if tokio::time::timeout(Duration::from_millis(SETTLE_MS_MAX), self.pumps.wait()).await.is_err() {
            tracing::warn!(dir = %self.dir.display(), "exec: the pumps did not end in time");
        }
    }
}
