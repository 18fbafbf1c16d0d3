//! A runtime in memory: sandboxes that are entries of a map, commands that are small scripts. For tests of all that
//! stands above a runtime, and for a dry run of a node on a machine that allows nothing.
//!
//! The world of sandboxes is shared by every clone of a [`FakeRuntime`], so a second edge can adopt what a first one
//! made. Commands run on the tokio runtime that built the world: they live on when the edge's own runtime is torn
//! down, as real ones do. Each step can be made slow or made to fail.
//!
//! Invariant: like a real backend, `create` leaves nothing behind on an error, and `stop` is idempotent.

mod chronus;
mod exec;
mod files;
mod script;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{Code, Error, Result, SandboxId};
use async_trait::async_trait;
use tokio::sync::watch;

use crate::{Handle, Plan, Record, Runtime};
use chronus::FakeChronus;

/// Where a fault or a delay can be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// In `create`, before `note`: no trace exists yet.
    BeforeNote,
    /// In `create`, after `note`: the trace is there and must be undone.
    AfterNote,
    Adopt,
    Stop,
    /// The start of a command.
    Exec,
}

#[derive(Default)]
struct Fault {
    latency_ms: u64,
    /// How many more calls fail, and how.
    failing: Option<(u32, Error)>,
    calls: u64,
}

struct Sandbox {
    chronus: Arc<FakeChronus>,
    ended: watch::Sender<Option<String>>,
}

pub(crate) struct World {
    sandboxes: Mutex<HashMap<SandboxId, Sandbox>>,
    faults: Mutex<HashMap<Step, Fault>>,
    snapshots: Mutex<HashSet<(SandboxId, String)>>,
    /// Where commands run.
    tasks: tokio::runtime::Handle,
}

/// See the module. Cheap to clone; clones share one world.
#[derive(Clone)]
pub struct FakeRuntime {
    world: Arc<World>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a test's thread must not hide behind a poisoned lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// One call of `step`: counts it, waits as told, fails as told.
    pub(crate) async fn pass(&self, step: Step) -> Result<()> {
        let (latency_ms, failure) = {
            let mut faults = lock(&self.faults);
            let fault = faults.entry(step).or_default();
            fault.calls += 1;
            let failure = match &mut fault.failing {
                Some((left, error)) if *left > 0 => {
                    *left -= 1;
                    Some(error.clone())
                }
                _ => None,
            };
            (fault.latency_ms, failure)
        };
        if latency_ms > 0 {
            tokio::time::sleep(Duration::from_millis(latency_ms)).await;
        }
        failure.map_or(Ok(()), Err)
    }
}

impl FakeRuntime {
    /// An empty world. Must be called inside a tokio runtime: its commands run there.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let world = World {
            sandboxes: Mutex::default(),
            faults: Mutex::default(),
            snapshots: Mutex::default(),
            tasks: tokio::runtime::Handle::current(),
        };
        Self { world: Arc::new(world) }
    }

    /// The next `times` calls of `step` fail with `error`.
    pub fn fail_next(&self, step: Step, times: u32, error: Error) {
        lock(&self.world.faults).entry(step).or_default().failing = Some((times, error));
    }

    /// Every call of `step` takes that long.
    pub fn set_latency_ms(&self, step: Step, latency_ms: u64) {
        lock(&self.world.faults).entry(step).or_default().latency_ms = latency_ms;
    }

    /// How often `step` was reached.
    pub fn calls(&self, step: Step) -> u64 {
        lock(&self.world.faults).get(&step).map_or(0, |f| f.calls)
    }

    /// How many snapshots there are, of all sandboxes.
    pub fn snapshots(&self) -> usize {
        lock(&self.world.snapshots).len()
    }

    /// The sandboxes that have a trace, in no order.
    pub fn alive(&self) -> Vec<SandboxId> {
        lock(&self.world.sandboxes).keys().cloned().collect()
    }

    /// The sandbox's first process dies: its commands end with it, its trace stays until `stop`.
    pub fn end(&self, id: &SandboxId, why: &str) {
        if let Some(sandbox) = lock(&self.world.sandboxes).get(id) {
            sandbox.chronus.end();
            sandbox.ended.send_replace(Some(why.to_owned()));
        }
    }

    /// The machine goes: nothing of any sandbox is left, and nobody was told.
    pub fn reboot(&self) {
        for (_, sandbox) in lock(&self.world.sandboxes).drain() {
            sandbox.chronus.end();
        }
    }

    /// Cuts every attached stream of the sandbox, as when the agent's connection is lost. Commands go on.
    pub fn cut_streams(&self, id: &SandboxId) {
        if let Some(sandbox) = lock(&self.world.sandboxes).get(id) {
            sandbox.chronus.cut_streams();
        }
    }

    /// Loses the output that the sandbox's agent holds.
    pub fn lose_held(&self, id: &SandboxId) {
        if let Some(sandbox) = lock(&self.world.sandboxes).get(id) {
            sandbox.chronus.lose_held();
        }
    }

    /// Bytes of output that the sandbox's agent holds, not yet acknowledged.
    pub fn bytes_held(&self, id: &SandboxId) -> u64 {
        lock(&self.world.sandboxes).get(id).map_or(0, |s| s.chronus.bytes_held())
    }

    fn handle(&self, id: &SandboxId) -> Result<Handle> {
        let sandboxes = lock(&self.world.sandboxes);
        let gone = || Error::new(Code::SandboxGone, format!("sandbox {id} has no process left"));
        let sandbox = sandboxes.get(id).filter(|s| s.ended.borrow().is_none()).ok_or_else(gone)?;
        Ok(Handle { record: record(id), chronus: sandbox.chronus.clone(), ended: sandbox.ended.subscribe() })
    }
}

fn snapshot_path(id: &SandboxId, name: &str) -> PathBuf {
    Path::new("/snapshots").join(id.as_str()).join(name)
}

fn record(id: &SandboxId) -> Record {
    serde_json::json!({ "fake": id })
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn create(&self, plan: &Plan, note: &(dyn for<'r> Fn(&'r Record) + Send + Sync)) -> Result<Handle> {
        self.world.pass(Step::BeforeNote).await?;
        note(&record(&plan.id));
        if let Some(disk) = &plan.disk
            && !lock(&self.world.snapshots).iter().any(|(id, name)| snapshot_path(id, name) == *disk)
        {
            return Err(Error::new(Code::SandboxGone, "the snapshot is gone"));
        }
        let chronus = Arc::new(FakeChronus::new(self.world.clone(), plan));
        let sandbox = Sandbox { chronus, ended: watch::Sender::new(None) };
        lock(&self.world.sandboxes).insert(plan.id.clone(), sandbox);
        if let Err(error) = self.world.pass(Step::AfterNote).await {
            lock(&self.world.sandboxes).remove(&plan.id);
            return Err(error);
        }
        self.handle(&plan.id)
    }

    async fn adopt(&self, id: &SandboxId, _record: &Record) -> Result<Handle> {
        self.world.pass(Step::Adopt).await?;
        self.handle(id)
    }

    async fn stop(&self, id: &SandboxId, _record: &Record) -> Result<()> {
        self.world.pass(Step::Stop).await?;
        let sandbox = lock(&self.world.sandboxes).remove(id);
        if let Some(sandbox) = sandbox {
            sandbox.chronus.end();
            sandbox.ended.send_replace(Some("stopped".into()));
        }
        lock(&self.world.snapshots).retain(|(of, _)| of != id);
        Ok(())
    }

    async fn reset(&self, id: &SandboxId, _record: &Record) -> Result<()> {
        self.world.pass(Step::Stop).await?;
        if let Some(sandbox) = lock(&self.world.sandboxes).remove(id) {
            sandbox.chronus.end();
        }
        Ok(())
    }

    async fn snapshot(&self, id: &SandboxId, _record: &Record, name: &str) -> Result<PathBuf> {
        lock(&self.world.snapshots).insert((id.clone(), name.to_owned()));
        Ok(snapshot_path(id, name))
    }

    async fn remove_snapshot(&self, id: &SandboxId, name: &str) -> Result<()> {
        lock(&self.world.snapshots).remove(&(id.clone(), name.to_owned()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use api::{
        exec::{AttachQuery, ExecRequest, ExitReason},
        frame::{ClientFrame, ServerFrame},
        spec::SandboxSpec,
    };

    use super::*;

    fn plan() -> Plan {
        Plan {
            id: SandboxId::new(&"e1".parse().unwrap()),
            spec: SandboxSpec::new("base"),
            layers: Vec::new(),
            env: [("A".to_owned(), "b".to_owned())].into(),
            user: None,
            workdir: Some("/w".into()),
            hostname: "h".into(),
            disk: None,
        }
    }

    async fn run(handle: &Handle, request: ExecRequest) -> (String, String, api::exec::Exit) {
        let mut stream = handle.chronus.exec(request).await.unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(frame) = stream.output.recv().await {
            match frame {
                ServerFrame::Output { stream: api::frame::Stream::Stdout, data, .. } => out.extend(data),
                ServerFrame::Output { data, .. } => err.extend(data),
                ServerFrame::Exit(exit) => {
                    return (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), exit);
                }
                _ => {}
            }
        }
        panic!("the stream ended without an exit");
    }

    #[tokio::test]
    async fn a_failed_create_leaves_nothing_and_the_record_was_noted_first() {
        let runtime = FakeRuntime::new();
        runtime.fail_next(Step::AfterNote, 1, Error::internal("x"));
        let noted = Mutex::new(0);
        let note = |_: &Record| *lock(&noted) += 1;
        assert!(runtime.create(&plan(), &note).await.is_err());
        assert_eq!(*lock(&noted), 1);
        assert!(runtime.alive().is_empty());
        runtime.create(&plan(), &note).await.unwrap();
        assert_eq!(runtime.alive().len(), 1);
    }

    #[tokio::test]
    async fn commands_run() {
        let runtime = FakeRuntime::new();
        let handle = runtime.create(&plan(), &|_| {}).await.unwrap();
        let (out, err, exit) =
            run(&handle, ExecRequest::shell("echo a b; err oops; env A; pwd; exit 3")).await;
        assert_eq!((out.as_str(), err.as_str(), exit.code), ("a b\nb\n/w\n", "oops\n", 3));
        let (out, _, _) = run(&handle, ExecRequest::argv(["echo", "a  b"])).await;
        assert_eq!(out, "a  b\n");
        let (_, err, exit) = run(&handle, ExecRequest::argv(["nosuch"])).await;
        assert_eq!((exit.code, exit.reason), (127, ExitReason::NotStarted));
        assert!(err.contains("nosuch"));
        let cat = ExecRequest { stdin: api::exec::Stdin::Data("hi".into()), ..ExecRequest::argv(["cat"]) };
        assert_eq!(run(&handle, cat).await.0, "hi");
        let slow = ExecRequest { timeout_ms: Some(1), ..ExecRequest::argv(["sleep", "60"]) };
        assert_eq!(run(&handle, slow).await.2.reason, ExitReason::Timeout);
    }

    #[tokio::test]
    async fn output_without_acknowledgement_stops_the_command_and_survives_a_new_attach() {
        let runtime = FakeRuntime::new();
        let plan = plan();
        let handle = runtime.create(&plan, &|_| {}).await.unwrap();
        let total = 3 * api::limit::AETHER_BUFFER_BYTES as u64;
        let first = handle.chronus.exec(ExecRequest::shell(format!("flood {total}"))).await.unwrap();
        let id = first.exec_id.clone();
        drop(first);
        let mut second = handle.chronus.exec_attach(id, AttachQuery::default()).await.unwrap();
        let mut seen = 0;
        while let Some(frame) = second.output.recv().await {
            match frame {
                ServerFrame::Output { offset, data, .. } => {
                    assert_eq!(offset, seen);
                    seen += data.len() as u64;
                    assert!(runtime.bytes_held(&plan.id) <= api::limit::AETHER_BUFFER_BYTES as u64);
                    second.input.send(ClientFrame::Ack { stdout: seen, stderr: 0 }).await.unwrap();
                }
                ServerFrame::Exit(exit) => {
                    assert_eq!((exit.code, seen), (0, total));
                    return;
                }
                _ => {}
            }
        }
        panic!("the stream ended without an exit");
    }
}
