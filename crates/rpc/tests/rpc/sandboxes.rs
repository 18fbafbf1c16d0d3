//! `Edge` and `Images` through the client, and the connections beneath.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use api::{
    Code,
    arrow::{Edge, Images},
    image::{ExportFormat, ExportQuery, ImageConfig, ImportQuery, LayerKind, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxSpec, TtlRequest},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rpc::EdgeClient;
use tokio::net::{TcpListener, TcpStream};

use crate::wire::{create_one, node, raw, request};

#[tokio::test]
async fn every_verb_of_an_edge_goes_through() {
    let node = node().await;
    let client = &node.client;
    let named = SandboxSpec { name: Some("a b".replace(' ', "-")), ..SandboxSpec::new("debian") };
    client.create(CreateRequest::one(named)).await.unwrap().next().await.unwrap();
    let by_name = client.list(ListQuery { name: Some("a-b".into()), label: None }).await.unwrap();
    assert_eq!((by_name.len(), client.list(ListQuery::default()).await.unwrap().len()), (1, 2));
    let id = &by_name[0].id;
    assert_eq!(client.inspect(id).await.unwrap(), by_name[0]);
    assert_eq!(client.set_ttl(id, TtlRequest { ttl_ms: 77 }).await.unwrap().expires_ms, 77);
    client.stop(id).await.unwrap();
    assert_eq!(client.stop(id).await.unwrap_err().code, Code::NotFound);
    assert_eq!(client.inspect(id).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn a_batch_answers_each_alone_and_a_refusal_sinks_all() {
    let node = node().await;
    let many = |image: &str| CreateRequest { count: 6, ..CreateRequest::one(SandboxSpec::new(image)) };
    let events: Vec<_> = node.client.create(many("debian")).await.unwrap().collect().await;
    let failed = events
        .iter()
        .filter(|e| matches!(e, CreateEvent::Failed { error, .. } if error.code == Code::NoCapacity));
    assert_eq!((events.len(), failed.count()), (6, 2));
    assert_eq!(node.client.create(many("nosuch")).await.err().unwrap().code, Code::NotFound);
    // The edge fails after the first event: every other one is told as failed, once.
    let events: Vec<_> = node.client.create(many("dies")).await.unwrap().collect().await;
    assert!(matches!(events[0], CreateEvent::Created { index: 0, .. }));
    let mut rest: Vec<_> = events[1..]
        .iter()
        .map(|event| match event {
            CreateEvent::Failed { index, error } if error.code == Code::Internal => *index,
            other => panic!("{other:?}"),
        })
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn the_catalogue_goes_through() {
    let node = node().await;
    let parts = (0..100).map(|_| Ok(Bytes::from(vec![7; 100_000])));
    let query =
        ImportQuery { prefix: Some("/home/é &=?".into()), ..ImportQuery::new("tool", LayerKind::Toolkit) };
    let image = node.client.import(query, Box::pin(stream::iter(parts))).await.unwrap();
    assert_eq!((image.size_bytes, image.kind), (10_000_000, LayerKind::Toolkit));
    assert_eq!(node.client.image_list().await.unwrap(), std::slice::from_ref(&image));
    assert_eq!(node.client.image_inspect("tool:latest").await.unwrap(), image);
    let query = ExportQuery { format: ExportFormat::Docker };
    let parts = node.client.image_export("tool:latest", query).await.unwrap();
    let bytes: Vec<_> = parts.map(Result::unwrap).collect().await;
    assert_eq!(bytes.concat(), b"Docker of tool:latest");
    assert_eq!(node.client.image_export("absent", query).await.err().unwrap().code, Code::NotFound);
    let request = MergeRequest { threshold_bytes: 7, ..MergeRequest::new("small") };
    let merged = node.client.image_merge("tool:latest", request).await.unwrap();
    assert_eq!((merged.version.as_str(), merged.size_bytes), ("small", 7));
    let refused = node.client.image_merge("tool:latest", MergeRequest::new("no/slash")).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    let config = ImageConfig { labels: [("a".into(), "b".into())].into(), ..ImageConfig::default() };
    let request = TagRequest { config: Some(config.clone()), ..TagRequest::new("other") };
    let tagged = node.client.image_tag("tool:latest", request).await.unwrap();
    assert_eq!((tagged.name.as_str(), &tagged.config), ("other", &config));
    let refused = node.client.image_tag("tool:latest", TagRequest::new("no/slash")).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    node.client.image_remove("tool:latest").await.unwrap();
    assert_eq!(node.client.image_remove("tool:latest").await.unwrap_err().code, Code::NotFound);
    // What breaks off on this side keeps its reason.
    let broken = Box::pin(stream::iter([Ok(Bytes::from("x")), Err(api::Error::new(Code::DiskFull, "mine"))]));
    let error = node.client.import(ImportQuery::new("t", LayerKind::Base), broken).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::DiskFull, "mine"));
    assert!(node.client.image_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_pull_tells_how_far_it_is_and_ends_once() {
    let node = node().await;
    let pull = async |name: &str| -> api::Result<Vec<_>> {
        let events = node.client.pull(PullRequest::new(format!("registry.example.org/{name}:1"))).await?;
        Ok(events.collect().await)
    };
    let events = pull("app").await.unwrap();
    let image = node.client.image_inspect("app:1").await.unwrap();
    assert!(matches!(&events[1], Ok(PullEvent::Progress(p)) if p.bytes_fetched == 2));
    assert!(matches!(&events[2..], [Ok(PullEvent::Pulled(pulled))] if *pulled == image));
    // A refusal has its status; what fails later is the last line.
    assert_eq!(pull("nosuch").await.unwrap_err().code, Code::NotFound);
    let events = pull("breaks").await.unwrap();
    let error = events[2].as_ref().unwrap_err();
    assert_eq!((events.len(), error.code, error.retry_after_ms), (3, Code::Unreachable, Some(7)));
    let named = PullRequest { name: Some("../x".into()), ..PullRequest::new("registry.example.org/app") };
    assert_eq!(node.client.pull(named).await.err().unwrap().code, Code::InvalidArgument);
}

#[tokio::test]
async fn one_connection_serves_many_calls() {
    let node = node().await;
    let counted = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = EdgeClient::new(&format!("http://{}", counted.local_addr().unwrap()), None).unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let (count, address) = (accepted.clone(), node.address);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = counted.accept().await {
            count.fetch_add(1, SeqCst);
            let mut to = TcpStream::connect(address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    for _ in 0..20 {
        client.list(ListQuery::default()).await.unwrap();
        create_one(&client).await;
        assert!(client.image_inspect("absent").await.is_err());
    }
    // `create_one` leaves its answer unread: such a connection is not used again. All others are.
    assert_eq!(accepted.load(SeqCst), 21);
}

#[tokio::test]
async fn the_id_of_a_request_goes_the_whole_road() {
    let node = node().await;
    // A second server that relays to the first, as an apiserver does.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(rpc::serve(
        listener.into(),
        rpc::front_router(Arc::new(node.client.clone())),
        std::future::pending(),
    ));
    let id = api::RequestId::new();
    let answer =
        raw(address, &request("GET", "/v1/sandboxes", &format!("x-request-id: {id}\r\n"), b"")).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some(id.as_str())));
    assert_eq!(node.edge.request_ids.lock().unwrap().last().unwrap().as_ref(), Some(&id));
}

#[tokio::test]
async fn an_absent_server_is_named_and_a_url_is_checked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = EdgeClient::new(&url, None).unwrap().health().await.unwrap_err();
    assert!(error.message.contains(&url), "{error}");
    for url in ["", "localhost:80", "ftp://x", "http://", "http://u@h", "https://x", "http://x/y z"] {
        assert!(EdgeClient::new(url, None).is_err(), "{url}");
    }
    assert!(EdgeClient::new("http://x", Some("a\nb")).is_err());
}

#[tokio::test]
async fn a_server_that_stops_lets_go() {
    let node = node().await;
    node.client.health().await.unwrap();
    node.stop.send(()).unwrap();
    node.server.await.unwrap().unwrap();
    assert!(node.client.health().await.is_err());
}
