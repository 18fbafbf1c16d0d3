//! A sandbox's life: made, listed, broken, expired, stopped in every state.

use std::{sync::Arc, time::Duration};

use api::{
    Code, Error, SandboxId,
    arrow::Edge,
    exec::{ExecRequest, ExitReason},
    spec::{CreateRequest, Kind, ListQuery, SandboxSpec, TtlRequest},
    state::State,
};
use runtime::fake::Step;

use crate::world::*;

#[tokio::test]
async fn a_sandbox_is_made_listed_and_stopped_without_a_trace() {
    let world = World::new();
    let node = world.start().await;
    let spec = SandboxSpec {
        toolkits: vec!["tools".into()],
        labels: [("job".to_owned(), "7".to_owned())].into(),
        ..named("a")
    };
    let made = create(&node, spec).await.unwrap();
    assert_eq!(made.state, State::Running);
    assert_eq!(made.layers, ["blake3:layer-base", "blake3:layer-tools"]);
    assert_eq!(node.inspect(&made.id).await.unwrap(), made);
    for (query, count) in [
        (ListQuery::default(), 1),
        (ListQuery { name: Some("a".into()), label: Some("job=7".into()) }, 1),
        (ListQuery { name: Some("b".into()), label: None }, 0),
        (ListQuery { name: None, label: Some("job=8".into()) }, 0),
    ] {
        assert_eq!(node.list(query).await.unwrap().len(), count);
    }
    assert!(node.list(ListQuery { name: None, label: Some("job".into()) }).await.is_err());
    assert_eq!(files(&world.config.ledger_dir), [format!("{}.json", made.id)]);
    run(&node, &made.id, ExecRequest::shell("flood 100000")).await;
    node.stop(&made.id).await.unwrap();
    world.assert_empty(&node);
    for error in [
        node.stop(&made.id).await.unwrap_err(),
        node.inspect(&made.id).await.unwrap_err(),
        node.chronus(&made.id).await.err().unwrap(),
        node.set_ttl(&made.id, TtlRequest { ttl_ms: 1 }).await.unwrap_err(),
    ] {
        assert_eq!(error.code, Code::NotFound);
    }
}

#[tokio::test]
async fn bad_requests_are_refused_before_anything_is_made() {
    let world = World::new();
    let node = world.start().await;
    for (code, spec) in [
        (Code::NotFound, SandboxSpec::new("nosuch")),
        (Code::InvalidArgument, SandboxSpec::new("tools")),
        (Code::InvalidArgument, SandboxSpec { memory_bytes_max: 1, ..spec() }),
        (Code::Unsupported, SandboxSpec { kind: Kind::MicroVm, ..spec() }),
        (Code::InvalidArgument, SandboxSpec { memory_bytes_max: 1 << 50, ..spec() }),
    ] {
        assert_eq!(create(&node, spec).await.unwrap_err().code, code);
    }
    assert_eq!(world.runtime.calls(Step::BeforeNote), 0);
    world.assert_empty(&node);
}

#[tokio::test]
async fn a_failed_create_leaves_nothing_and_frees_its_name() {
    let world = World::new();
    let node = world.start().await;
    for step in [Step::BeforeNote, Step::AfterNote] {
        world.runtime.fail_next(step, 1, Error::new(Code::DiskFull, "no room"));
        assert_eq!(create(&node, named("a")).await.unwrap_err().code, Code::DiskFull);
        world.assert_empty(&node);
    }
    create(&node, named("a")).await.unwrap();
}

#[tokio::test]
async fn stop_answers_all_who_ask_at_once_and_later_ones_find_nothing() {
    let world = World::new();
    let node = world.start().await;
    let made = create(&node, spec()).await.unwrap();
    world.runtime.set_latency_ms(Step::Stop, 50);
    let stops = (0..20).map(|_| node.stop(&made.id));
    for result in futures_util::future::join_all(stops).await {
        result.unwrap();
    }
    assert_eq!(node.stop(&made.id).await.unwrap_err().code, Code::NotFound);
    assert_eq!(world.runtime.calls(Step::Stop), 1);
}

#[tokio::test]
async fn stop_while_creating_takes_down_what_is_made() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 100);
    let creating = tokio::spawn({
        let node = node.clone();
        async move { create(&node, named("a")).await }
    });
    until("it is being created", async || world.runtime.calls(Step::AfterNote) == 1).await;
    let id = node.list(ListQuery::default()).await.unwrap()[0].id.clone();
    assert_eq!(node.inspect(&id).await.unwrap().state, State::Creating);
    assert_eq!(node.chronus(&id).await.err().map(|e| e.code), Some(Code::Conflict));
    node.stop(&id).await.unwrap();
    assert_eq!(creating.await.unwrap().unwrap_err().code, Code::SandboxGone);
    world.assert_empty(&node);
}

#[tokio::test]
async fn stop_while_waiting_for_a_turn_makes_nothing() {
    let mut world = World::new();
    world.config.creates_in_flight_max = 1;
    world.config.creates_queued_max = 1;
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::BeforeNote, 200);
    let start = |name: &'static str| {
        let node = node.clone();
        tokio::spawn(async move { create(&node, named(name)).await })
    };
    let first = start("a");
    until("the first is at work", async || world.runtime.calls(Step::BeforeNote) == 1).await;
    let second = start("b");
    until("the second waits", async || node.list(ListQuery::default()).await.unwrap().len() == 2).await;
    let error = create(&node, named("c")).await.unwrap_err();
    assert_eq!((error.code, error.retry_after_ms.is_some()), (Code::NoCapacity, true));
    let query = ListQuery { name: Some("b".into()), label: None };
    let waiting = node.list(query).await.unwrap()[0].id.clone();
    node.stop(&waiting).await.unwrap();
    assert_eq!(second.await.unwrap().unwrap_err().code, Code::SandboxGone);
    first.await.unwrap().unwrap();
    assert_eq!(world.runtime.calls(Step::BeforeNote), 1);
}

#[tokio::test]
async fn a_stop_that_fails_is_told_and_can_be_asked_again() {
    let world = World::new();
    let node = world.start().await;
    let made = create(&node, spec()).await.unwrap();
    world.runtime.fail_next(Step::Stop, 1, Error::internal("busy"));
    assert_eq!(node.stop(&made.id).await.unwrap_err().code, Code::Internal);
    assert_eq!(node.inspect(&made.id).await.unwrap().state, State::Stopping);
    assert_eq!(node.chronus(&made.id).await.err().map(|e| e.code), Some(Code::SandboxGone));
    let ttl = node.set_ttl(&made.id, TtlRequest { ttl_ms: 1000 }).await;
    assert_eq!(ttl.unwrap_err().code, Code::SandboxGone);
    node.stop(&made.id).await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_takes_too_long_is_told_and_goes_on() {
    let world = World::new();
    let node = world.start().await;
    let made = create(&node, spec()).await.unwrap();
    world.runtime.set_latency_ms(Step::Stop, 60_000);
    assert_eq!(node.stop(&made.id).await.unwrap_err().code, Code::DeadlineExceeded);
    world.runtime.set_latency_ms(Step::Stop, 0);
    until("it is gone", async || node.inspect(&made.id).await.is_err()).await;
    world.assert_empty(&node);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_takes_too_long_is_undone() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 600_000);
    assert_eq!(create(&node, spec()).await.unwrap_err().code, Code::DeadlineExceeded);
    world.assert_empty(&node);
}

#[tokio::test]
async fn a_broken_sandbox_says_so_at_once_and_can_be_stopped() {
    let world = World::new();
    let node = world.start().await;
    let made = create(&node, spec()).await.unwrap();
    let running = start_exec(&node, &made.id, ExecRequest::shell("echo a; sleep 1000")).await.unwrap();
    world.runtime.end(&made.id, "init was killed");
    let heard = listen(running).await;
    assert_eq!(heard.exit.map(|e| (e.code, e.reason)), Some((137, ExitReason::SandboxGone)));
    until("it is broken", async || node.inspect(&made.id).await.unwrap().state == State::Broken).await;
    let info = node.inspect(&made.id).await.unwrap();
    assert_eq!((info.reason.as_deref(), info.execs_live), (Some("init was killed"), 0));
    let error = node.chronus(&made.id).await.err().unwrap();
    assert_eq!(error.code, Code::SandboxBroken);
    assert!(error.message.contains("init was killed"));
    node.stop(&made.id).await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test]
async fn a_call_that_meets_the_death_says_broken_and_not_internal() {
    let world = World::new();
    let node = world.start().await;
    let made = create(&node, spec()).await.unwrap();
    let chronus = inside(&node, &made.id).await;
    world.runtime.set_latency_ms(Step::Exec, 50);
    let (result, ()) = tokio::join!(chronus.exec(ExecRequest::shell("true")), async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.runtime.end(&made.id, "gone");
    });
    assert_eq!(result.err().map(|e| e.code), Some(Code::SandboxBroken));
}

#[tokio::test(start_paused = true)]
async fn the_ttl_ends_a_sandbox_and_can_be_moved() {
    let world = World::new();
    let node = world.start().await;
    let short = create(&node, SandboxSpec { ttl_ms: 10_000, ..spec() }).await.unwrap();
    let moved = create(&node, SandboxSpec { ttl_ms: 10_000, ..spec() }).await.unwrap();
    let busy = start_exec(&node, &short.id, ExecRequest::shell("sleep 1000")).await.unwrap();
    let info = node.set_ttl(&moved.id, TtlRequest { ttl_ms: 60_000 }).await.unwrap();
    assert!(info.expires_ms >= moved.expires_ms + 40_000);
    assert_eq!(
        node.set_ttl(&moved.id, TtlRequest { ttl_ms: 0 }).await.unwrap_err().code,
        Code::InvalidArgument
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.inspect(&short.id).await.unwrap().state, State::Running);
    tokio::time::sleep(Duration::from_secs(10)).await;
    until("it expired", async || node.inspect(&short.id).await.is_err()).await;
    assert_eq!(listen(busy).await.exit.map(|e| e.reason), Some(ExitReason::SandboxGone));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(node.inspect(&moved.id).await.unwrap().state, State::Running);
    node.set_ttl(&moved.id, TtlRequest { ttl_ms: 1 }).await.unwrap();
    until("it expired", async || node.inspect(&moved.id).await.is_err()).await;
    world.assert_empty(&node);
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_ends_during_the_create_ends_the_create() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 5000);
    let error = create(&node, SandboxSpec { ttl_ms: 100, ..spec() }).await.unwrap_err();
    assert_eq!(error.code, Code::SandboxGone);
    world.assert_empty(&node);
}

#[tokio::test]
async fn capacity_is_given_back_by_a_stop() {
    let mut world = World::new();
    world.config.capacity.sandboxes_max = 2;
    let node = world.start().await;
    let first = create(&node, spec()).await.unwrap();
    create(&node, spec()).await.unwrap();
    let error = create(&node, spec()).await.unwrap_err();
    assert_eq!(error.code, Code::NoCapacity);
    assert!(error.message.contains("sandboxes"));
    node.stop(&first.id).await.unwrap();
    create(&node, spec()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_at_once_twice_leave_nothing() {
    let world = World::new();
    let node = world.start().await;
    for _ in 0..2 {
        let creates = (0..100).map(|_| {
            let node = node.clone();
            tokio::spawn(async move { create(&node, spec()).await.unwrap().id })
        });
        let ids: Vec<SandboxId> =
            futures_util::future::join_all(creates).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(world.runtime.alive().len(), 100);
        let stops = ids.into_iter().map(|id| {
            let node: Arc<_> = node.clone();
            tokio::spawn(async move { node.stop(&id).await.unwrap() })
        });
        futures_util::future::join_all(stops).await.into_iter().for_each(Result::unwrap);
        world.assert_empty(&node);
    }
}

#[tokio::test]
async fn stop_all_stops_all_and_nobody_new_comes() {
    let world = World::new();
    let node = world.start().await;
    events(&node, CreateRequest { count: 10, ..CreateRequest::one(spec()) }).await.unwrap();
    node.stop_all().await.unwrap();
    world.assert_empty(&node);
    assert_eq!(create(&node, spec()).await.unwrap_err().code, Code::NoCapacity);
}
