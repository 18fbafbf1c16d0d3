//! The verbs of images.

use std::time::Duration;

use api::{
    Code, Error,
    arrow::{Edge, Images},
    image::{ExportQuery, ImportQuery, LayerKind, MergeRequest},
    pull::{PullEvent, PullRequest},
    spec::{CreateRequest, ListQuery},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use runtime::fake::Step;

use crate::world::*;

#[tokio::test]
async fn a_body_of_many_parts_is_imported_exactly() {
    let world = World::new();
    let node = world.start().await;
    let parts: Vec<_> = (0..100u8).map(|n| Ok(Bytes::from(vec![n; 1000]))).collect();
    let query = ImportQuery::new("new", LayerKind::Base);
    let info = node.import(query, Box::pin(stream::iter(parts))).await.unwrap();
    assert_eq!((info.size_bytes, info.in_use), (100_000, 0));
    let expected: Vec<u8> = (0..100u8).flat_map(|n| vec![n; 1000]).collect();
    assert_eq!(world.layers.bytes_of("new"), expected);
    assert_eq!(node.image_list().await.unwrap().len(), 3);
    assert_eq!(node.image_inspect("new").await.unwrap().digest, info.digest);
}

#[tokio::test]
async fn a_body_that_fails_makes_no_image() {
    let world = World::new();
    let node = world.start().await;
    let parts = vec![Ok(Bytes::from_static(b"half")), Err(Error::internal("the client left"))];
    let query = ImportQuery::new("new", LayerKind::Base);
    node.import(query, Box::pin(stream::iter(parts))).await.unwrap_err();
    assert_eq!(node.image_inspect("new").await.unwrap_err().code, Code::NotFound);
    let bad = ImportQuery::new("../x", LayerKind::Base);
    assert_eq!(node.import(bad, Box::pin(stream::empty())).await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn an_export_comes_out_exactly_and_there_are_not_too_many_at_once() {
    let world = World::new();
    let node = world.start().await;
    let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 1000) as u8).collect();
    let query = ImportQuery::new("large", LayerKind::Base);
    node.import(query, Box::pin(stream::iter([Ok(Bytes::from(bytes.clone()))]))).await.unwrap();
    let export = || node.image_export("large", ExportQuery::default());
    let parts: Vec<_> = export().await.unwrap().map(|part| part.unwrap()).collect().await;
    assert!(parts.concat() == bytes);
    // Nobody reads these, so none of them ends.
    let mut held = Vec::new();
    let refused = loop {
        match export().await {
            Ok(export) => held.push(export),
            Err(error) => break error,
        }
    };
    assert_eq!((refused.code, held.len()), (Code::RateLimited, 16));
    assert_eq!(node.image_merge("large", MergeRequest::new("x")).await.unwrap_err().code, Code::RateLimited);
    held.clear();
    while node.image_merge("large", MergeRequest::new("x")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(node.image_export("nobody", ExportQuery::default()).await.err().unwrap().code, Code::NotFound);
}

#[tokio::test]
async fn a_pull_tells_its_last_progress_before_its_end() {
    let world = World::new();
    let node = world.start().await;
    let pull = async |name: &str| node.pull(PullRequest::new(format!("registry.example.org/{name}"))).await;
    let events: Vec<_> = pull("new").await.unwrap().map(Result::unwrap).collect().await;
    let [.., PullEvent::Progress(last), PullEvent::Pulled(image)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((last.bytes_fetched, image.size_bytes), (3, 6));
    assert_eq!(node.image_inspect("new").await.unwrap().digest, image.digest);
    assert_eq!(pull("nosuch").await.err().unwrap().code, Code::NotFound);
    // Whoever leaves ends it.
    let mut slow = pull("slow").await.unwrap();
    assert!(matches!(slow.next().await, Some(Ok(PullEvent::Progress(_)))));
    drop(slow);
    for _ in 0..500 {
        if world.layers.given_up.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the pull goes on");
}

#[tokio::test]
async fn an_image_that_is_lived_on_stays() {
    let world = World::new();
    let node = world.start().await;
    let request = CreateRequest { count: 3, ..CreateRequest::one(spec()) };
    events(&node, request).await.unwrap();
    assert_eq!(node.image_inspect("base").await.unwrap().in_use, 3);
    assert_eq!(node.image_remove("base").await.unwrap_err().code, Code::Conflict);
    node.image_remove("tools").await.unwrap();
    for sandbox in node.list(ListQuery::default()).await.unwrap() {
        node.stop(&sandbox.id).await.unwrap();
    }
    node.image_remove("base").await.unwrap();
    assert_eq!(node.image_remove("base").await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn an_image_that_a_create_has_looked_up_stays() {
    let world = World::new();
    let node = world.start().await;
    world.runtime.set_latency_ms(Step::BeforeNote, 30);
    let stream = node.create(CreateRequest::one(spec())).await.unwrap();
    assert_eq!(node.image_remove("base").await.unwrap_err().code, Code::Conflict);
    drop(stream);
}
