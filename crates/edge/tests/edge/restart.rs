//! An edge is killed, or ends, and another takes over. A kill is the end of its whole tokio runtime: every task of it
//! stops where it stands; the fake sandboxes live on in the test's own runtime.

use std::{sync::Arc, time::Duration};

use api::{
    Code, SandboxId,
    arrow::Edge,
    exec::{AttachQuery, ExecRequest, ExitReason},
    spec::{CreateRequest, SandboxSpec, TtlRequest},
    state::State,
};
use edge::EdgeNode;
use runtime::fake::Step;

use crate::world::*;

/// An edge in a runtime of its own.
struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    node: Arc<EdgeNode>,
}

impl Process {
    async fn start(world: &Arc<World>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let world = world.clone();
        let node = runtime.spawn(async move { world.start().await }).await.unwrap();
        Self { runtime: Some(runtime), node }
    }

    /// Runs a request as a task of the edge's process.
    async fn ask<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.as_ref().unwrap().spawn(request).await.unwrap()
    }

    async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
    }
}

fn pattern(to: u64) -> Vec<u8> {
    (0..to).map(|o| (o % 251) as u8).collect()
}

fn edit_entry(world: &World, id: &SandboxId, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = world.config.ledger_dir.join(format!("{id}.json"));
    let mut entry = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut entry);
    std::fs::write(path, serde_json::to_vec(&entry).unwrap()).unwrap();
}

async fn made(process: &Process, spec: SandboxSpec) -> SandboxId {
    let node = process.node.clone();
    process.ask(async move { create(&node, spec).await.unwrap().id }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_sandboxes_survive_a_kill() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let mut before = Vec::new();
    for n in 0..20 {
        let id = made(&first, named(&format!("n{n}"))).await;
        before.push(first.node.inspect(&id).await.unwrap());
    }
    let load = first.node.load();
    first.kill().await;
    let node = world.start().await;
    assert_eq!(node.load(), load);
    for info in &before {
        assert_eq!(node.inspect(&info.id).await.unwrap(), *info);
        assert_eq!(run(&node, &info.id, ExecRequest::shell("echo on")).await.text(), "on\n");
    }
    assert_eq!(create(&node, named("n7")).await.unwrap_err().code, Code::AlreadyExists);
    node.stop_all().await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_exec_loses_no_byte() {
    // Small, so still in memory; middle; more than aether holds at once.
    for total in [100u64, 200_000, 5 << 20] {
        let world = Arc::new(World::new());
        let first = Process::start(&world).await;
        let id = made(&first, spec()).await;
        let text = format!("flood {total}; sleep 0.3; echo end");
        let (node, sandbox) = (first.node.clone(), id.clone());
        let exec = first
            .ask(async move {
                let stream = start_exec(&node, &sandbox, ExecRequest::shell(text)).await.unwrap();
                let exec = stream.exec_id.clone();
                tokio::spawn(listen(stream));
                tokio::time::sleep(Duration::from_millis(20)).await;
                exec
            })
            .await;
        first.kill().await;
        let node = world.start().await;
        let chronus = inside(&node, &id).await;
        let heard = listen(chronus.exec_attach(exec, AttachQuery::default()).await.unwrap()).await;
        assert!(heard.dropped.is_empty(), "of {total}");
        assert!(heard.stdout == [pattern(total), b"end\n".to_vec()].concat(), "of {total}");
        assert_eq!(heard.exit.map(|e| e.code), Some(0));
        node.stop_all().await.unwrap();
        world.assert_empty(&node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_agent_lost_is_declared() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let id = made(&first, spec()).await;
    let (node, sandbox) = (first.node.clone(), id.clone());
    let exec = first
        .ask(async move {
            let text = "echo lost; sleep 0.3; echo kept";
            start_exec(&node, &sandbox, ExecRequest::shell(text)).await.unwrap().exec_id
        })
        .await;
    until("it has written", async || world.runtime.bytes_held(&id) == 5).await;
    first.kill().await;
    world.runtime.lose_held(&id);
    let node = world.start().await;
    let chronus = inside(&node, &id).await;
    let heard = listen(chronus.exec_attach(exec, AttachQuery::default()).await.unwrap()).await;
    assert_eq!((heard.dropped.as_slice(), heard.text()), (&[(0, 5)][..], "kept\n"));
    assert_eq!(heard.exit.map(|e| e.code), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_execs_and_their_keys_survive() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let id = made(&first, spec()).await;
    let keyed = |text: &str| ExecRequest { idempotency_key: Some("k".into()), ..ExecRequest::shell(text) };
    let (node, sandbox, request) = (first.node.clone(), id.clone(), keyed("echo once; exit 3"));
    let big = first
        .ask(async move {
            run(&node, &sandbox, request).await;
            let stream = start_exec(&node, &sandbox, ExecRequest::shell("flood 50000")).await.unwrap();
            let big = stream.exec_id.clone();
            listen(stream).await;
            big
        })
        .await;
    let dir = world.config.spool_dir.join(id.as_str());
    until("both are recorded", async || files(&dir).iter().filter(|f| f.ends_with(".json")).count() == 2)
        .await;
    let before = inside(&first.node, &id).await.exec_list().await.unwrap();
    first.kill().await;
    std::fs::write(dir.join("ex-junk.json"), b"{").unwrap();
    let starts = world.runtime.calls(Step::Exec);
    let node = world.start().await;
    let chronus = inside(&node, &id).await;
    until("the list is the same", async || chronus.exec_list().await.unwrap() == before).await;
    let heard = listen(chronus.exec_attach(big, AttachQuery::default()).await.unwrap()).await;
    assert!(heard.stdout == pattern(50_000));
    let again = run(&node, &id, keyed("echo once; exit 3")).await;
    assert_eq!((again.text(), again.exit.map(|e| e.code)), ("once\n", Some(3)));
    assert_eq!(world.runtime.calls(Step::Exec), starts, "nothing ran twice");
    let other = start_exec(&node, &id, keyed("echo twice")).await;
    assert_eq!(other.err().map(|e| e.code), Some(Code::Conflict));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_made_and_a_half_stopped_sandbox_are_cleaned_up() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let stopping = made(&first, named("b")).await;
    world.runtime.set_latency_ms(Step::AfterNote, 60_000);
    world.runtime.set_latency_ms(Step::Stop, 60_000);
    let (node, id) = (first.node.clone(), stopping.clone());
    first
        .ask(async move {
            let creator = node.clone();
            tokio::spawn(async move { create(&creator, named("a")).await });
            tokio::spawn(async move { node.stop(&id).await });
        })
        .await;
    until("both are half done", async || {
        world.runtime.calls(Step::AfterNote) == 2 && world.runtime.calls(Step::Stop) == 1
    })
    .await;
    first.kill().await;
    assert_eq!(world.runtime.alive().len(), 2);
    assert_eq!(files(&world.config.ledger_dir).len(), 2);
    world.runtime.set_latency_ms(Step::AfterNote, 0);
    world.runtime.set_latency_ms(Step::Stop, 0);
    let node = world.start().await;
    until("both are gone", async || node.list(Default::default()).await.unwrap().is_empty()).await;
    world.assert_empty(&node);
    create(&node, named("a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_expired_or_is_of_another_boot_is_cleaned_up() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let lives = made(&first, spec()).await;
    let dead = made(&first, spec()).await;
    let expired = made(&first, spec()).await;
    let old = made(&first, spec()).await;
    first.kill().await;
    world.runtime.end(&dead, "killed meanwhile");
    edit_entry(&world, &expired, |entry| entry["expires_ms"] = 1.into());
    edit_entry(&world, &old, |entry| entry["boot_id"] = "another".into());
    std::fs::create_dir(world.config.spool_dir.join(SandboxId::new(&"e1".parse().unwrap()).as_str()))
        .unwrap();
    std::fs::create_dir(world.config.spool_dir.join(lives.as_str())).unwrap();
    let node = world.start().await;
    until("three are gone", async || node.list(Default::default()).await.unwrap().len() == 1).await;
    assert_eq!(node.inspect(&lives).await.unwrap().state, State::Running);
    assert_eq!(world.runtime.alive(), std::slice::from_ref(&lives));
    assert_eq!(files(&world.config.ledger_dir), [format!("{lives}.json")]);
    assert_eq!(files(&world.config.spool_dir), [lives.to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_survives_and_a_moved_one_too() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let id = made(&first, SandboxSpec { ttl_ms: 1000, ..spec() }).await;
    let moved = made(&first, SandboxSpec { ttl_ms: 1000, ..spec() }).await;
    let info = first.node.set_ttl(&moved, TtlRequest { ttl_ms: 600_000 }).await.unwrap();
    first.kill().await;
    let node = world.start().await;
    assert_eq!(node.inspect(&moved).await.unwrap().expires_ms, info.expires_ms);
    until("it expired", async || node.inspect(&id).await.is_err()).await;
    assert_eq!(node.inspect(&moved).await.unwrap().state, State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_key_survives_with_its_sandboxes() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let request = CreateRequest { idempotency_key: Some("k".into()), ..CreateRequest::many(3, spec()) };
    let (node, asked) = (first.node.clone(), request.clone());
    let mut before = first.ask(async move { events(&node, asked).await.unwrap() }).await;
    first.kill().await;
    let node = world.start().await;
    let mut after = events(&node, request.clone()).await.unwrap();
    let index = |event: &api::spec::CreateEvent| match event {
        api::spec::CreateEvent::Created { index, .. } | api::spec::CreateEvent::Failed { index, .. } => {
            *index
        }
    };
    before.sort_by_key(index);
    after.sort_by_key(index);
    assert_eq!(before, after);
    let other = CreateRequest { count: 2, ..request };
    assert_eq!(events(&node, other).await.unwrap_err().code, Code::Conflict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_reached_is_broken_and_can_be_stopped() {
    let world = Arc::new(World::new());
    let first = Process::start(&world).await;
    let id = made(&first, spec()).await;
    first.kill().await;
    world.runtime.fail_next(Step::Adopt, 100, api::Error::internal("no answer"));
    let node = world.start().await;
    assert_eq!(node.inspect(&id).await.unwrap().state, State::Broken);
    assert_eq!(node.chronus(&id).await.err().map(|e| e.code), Some(Code::SandboxBroken));
    node.stop(&id).await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test]
async fn a_shutdown_leaves_all_alive_and_lets_clients_go() {
    let world = World::new();
    let first = world.start().await;
    let id = create(&first, spec()).await.unwrap().id;
    let text = "flood 100000; sleep 0.2; echo end";
    let stream = start_exec(&first, &id, ExecRequest::shell(text)).await.unwrap();
    let exec = stream.exec_id.clone();
    world.runtime.set_latency_ms(Step::AfterNote, 50);
    let creating = first.create(CreateRequest::one(spec())).await.unwrap();
    first.shutdown().await;
    assert!(listen(stream).await.exit.is_none(), "the client is let go without an end");
    let other = one(futures_util::StreamExt::collect(creating).await).unwrap();
    assert_eq!(create(&first, spec()).await.unwrap_err().code, Code::NoCapacity);
    drop(first);
    let node = world.start().await;
    assert_eq!(node.inspect(&other.id).await.unwrap().state, State::Running);
    let chronus = inside(&node, &id).await;
    let heard = listen(chronus.exec_attach(exec, AttachQuery::default()).await.unwrap()).await;
    assert!(heard.stdout == [pattern(100_000), b"end\n".to_vec()].concat());
    assert_eq!(heard.exit.map(|e| e.reason), Some(ExitReason::Exited));
}
