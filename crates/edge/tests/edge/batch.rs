//! Many sandboxes by one request.

use api::{
    Code, Error,
    arrow::Edge,
    spec::{CreateEvent, CreateRequest, ListQuery},
    state::State,
};
use futures_util::StreamExt;
use runtime::fake::Step;

use crate::world::*;

fn batch(count: u32) -> CreateRequest {
    CreateRequest { count, ..CreateRequest::one(spec()) }
}

#[tokio::test]
async fn each_item_is_told_once_and_failures_stay_alone() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.fail_next(Step::AfterNote, 7, Error::new(Code::DiskFull, "no room"));
    let (mut indexes, mut failed) = (Vec::new(), 0);
    for event in events(&node, batch(100)).await.unwrap() {
        match event {
            CreateEvent::Created { index, sandbox } => {
                assert_eq!(sandbox.state, State::Running);
                indexes.push(index);
            }
            CreateEvent::Failed { index, error } => {
                assert_eq!(error.code, Code::DiskFull);
                failed += 1;
                indexes.push(index);
            }
        }
    }
    indexes.sort_unstable();
    assert_eq!((indexes, failed), ((0..100).collect(), 7));
    assert_eq!(world.runtime.alive().len(), 93);
    node.stop_all().await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test]
async fn items_beyond_the_capacity_fail_alone() {
    let mut world = World::new();
    world.config.capacity.sandboxes_max = 3;
    let node = world.start().await;
    let events = events(&node, batch(5)).await.unwrap();
    let short =
        |e: &&CreateEvent| matches!(e, CreateEvent::Failed { error, .. } if error.code == Code::NoCapacity);
    assert_eq!(events.iter().filter(short).count(), 2);
    assert_eq!(world.runtime.alive().len(), 3);
}

#[tokio::test]
async fn no_more_than_the_bound_are_made_at_once() {
    let mut world = World::new();
    world.config.batch_in_flight_max = 2;
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 20);
    let mut stream = node.create(batch(6)).await.unwrap();
    let mut seen = 0;
    while let Some(event) = stream.next().await {
        assert!(matches!(event, CreateEvent::Created { .. }));
        seen += 1;
        let all = node.list(ListQuery::default()).await.unwrap();
        let creating = all.iter().filter(|s| s.state == State::Creating).count();
        assert!(creating <= 2, "{creating} at once");
    }
    assert_eq!(seen, 6);
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_batch_and_keeps_what_was_begun() {
    let mut world = World::new();
    world.config.batch_in_flight_max = 2;
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::AfterNote, 10);
    let mut stream = node.create(batch(1000)).await.unwrap();
    assert!(matches!(stream.next().await, Some(CreateEvent::Created { .. })));
    drop(stream);
    until("the batch has ended", async || {
        let all = node.list(ListQuery::default()).await.unwrap();
        all.iter().all(|s| s.state == State::Running)
    })
    .await;
    let made = world.runtime.alive().len();
    assert!((1..100).contains(&made), "{made} were made");
    assert_eq!(node.list(ListQuery::default()).await.unwrap().len(), made);
    assert_eq!(world.runtime.calls(Step::BeforeNote) as usize, made);
}
