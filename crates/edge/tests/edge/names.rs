//! Names and idempotency keys, raced for.

use api::{
    Code, Error,
    arrow::Edge,
    spec::{CreateEvent, CreateRequest, SandboxSpec},
    state::State,
};
use runtime::fake::Step;

use crate::world::*;

fn keyed(key: &str, count: u32, spec: SandboxSpec) -> CreateRequest {
    CreateRequest { idempotency_key: Some(key.into()), ..CreateRequest::many(count, spec) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_a_hundred_times_at_once_has_one_winner() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 5);
    let creates = (0..100).map(|_| {
        let node = node.clone();
        tokio::spawn(async move { create(&node, named("one")).await })
    });
    let mut winners = Vec::new();
    for result in futures_util::future::join_all(creates).await {
        match result.unwrap() {
            Ok(made) => winners.push(made),
            Err(error) => assert_eq!(error.code, Code::AlreadyExists),
        }
    }
    let [winner] = &winners[..] else { panic!("{} winners", winners.len()) };
    assert_eq!(node.inspect(&winner.id).await.unwrap().state, State::Running);
    assert_eq!(world.runtime.alive(), std::slice::from_ref(&winner.id));
    node.stop(&winner.id).await.unwrap();
    create(&node, named("one")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_a_hundred_times_at_once_makes_one_sandbox() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 5);
    let creates = (0..100).map(|_| {
        let node = node.clone();
        tokio::spawn(async move { one(events(&node, keyed("k", 1, named("n"))).await.unwrap()).unwrap().id })
    });
    let mut ids: Vec<_> =
        futures_util::future::join_all(creates).await.into_iter().map(Result::unwrap).collect();
    ids.dedup();
    assert_eq!(world.runtime.alive(), ids);
}

#[tokio::test]
async fn a_key_belongs_to_its_request_while_its_sandboxes_live() {
    let world = World::new();
    let node = world.start().await;
    let made = one(events(&node, keyed("k", 1, spec())).await.unwrap()).unwrap();
    for other in [keyed("k", 2, spec()), keyed("k", 1, named("x"))] {
        assert_eq!(events(&node, other).await.unwrap_err().code, Code::Conflict);
    }
    assert_eq!(one(events(&node, keyed("k", 1, spec())).await.unwrap()).unwrap(), made);
    node.stop(&made.id).await.unwrap();
    let new = one(events(&node, keyed("k", 1, named("x"))).await.unwrap()).unwrap();
    assert_ne!(new.id, made.id);
}

#[tokio::test]
async fn a_key_whose_create_failed_is_free() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.fail_next(Step::BeforeNote, 1, Error::internal("x"));
    assert!(one(events(&node, keyed("k", 1, spec())).await.unwrap()).is_err());
    assert_eq!(
        events(&node, keyed("k", 1, SandboxSpec::new("nosuch"))).await.unwrap_err().code,
        Code::NotFound
    );
    one(events(&node, keyed("k", 1, named("other"))).await.unwrap()).unwrap();
}

#[tokio::test]
async fn a_keyed_batch_is_completed_by_a_second_try() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.fail_next(Step::BeforeNote, 2, Error::internal("x"));
    let ids = |events: &[CreateEvent]| {
        let mut ids = std::collections::BTreeMap::new();
        for event in events {
            if let CreateEvent::Created { index, sandbox } = event {
                ids.insert(*index, sandbox.id.clone());
            }
        }
        ids
    };
    let first = ids(&events(&node, keyed("k", 5, spec())).await.unwrap());
    assert_eq!(first.len(), 3);
    let second = ids(&events(&node, keyed("k", 5, spec())).await.unwrap());
    assert_eq!(second.len(), 5);
    assert!(first.iter().all(|(index, id)| second[index] == *id));
    node.stop(&second[&0]).await.unwrap();
    let third = events(&node, keyed("k", 5, spec())).await.unwrap();
    assert_eq!(ids(&third).len(), 4);
    let gone = |e: &&CreateEvent| matches!(e, CreateEvent::Failed { index: 0, error } if error.code == Code::SandboxGone);
    assert_eq!(third.iter().filter(gone).count(), 1);
}
