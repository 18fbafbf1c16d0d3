//! The apiserver over real sockets and a real key store, before fake edges: one in its process, one behind HTTP.
#![allow(clippy::unwrap_used)]

#[path = "../../../rpc/tests/rpc/fake.rs"]
#[allow(dead_code)]
mod fake;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use api::{
    Code, EdgeId, SandboxId,
    arrow::{Chronus, Edge, Front, Images},
    exec::ExecRequest,
    file::WriteQuery,
    image::{ImportQuery, LayerKind},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxSpec, TtlRequest},
};
use apiserver::Apiserver;
use fake::FakeEdge;
use futures_util::{StreamExt, stream};
use iam::Iam;
use rpc::EdgeClient;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

struct Cluster {
    iam: Iam,
    key: String,
    address: SocketAddr,
    client: EdgeClient,
    _directory: tempfile::TempDir,
}

async fn serve(router: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(rpc::serve(listener.into(), router, std::future::pending()));
    address
}

async fn cluster(edges: Vec<(&str, Arc<dyn Front>)>) -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let iam = Iam::open(directory.path().join("iam.db")).await.unwrap();
    let key = iam.create_key("test").await.unwrap();
    let edges = edges.into_iter().map(|(id, edge)| (id.parse::<EdgeId>().unwrap(), edge));
    let address = serve(Apiserver::new(iam.clone(), edges).router()).await;
    let client = EdgeClient::new(&format!("http://{address}"), Some(&key)).unwrap();
    Cluster { iam, key, address, client, _directory: directory }
}

fn local() -> Arc<dyn Front> {
    Arc::new(FakeEdge::default())
}

async fn remote() -> Arc<dyn Front> {
    let address = serve(rpc::front_router(local())).await;
    Arc::new(EdgeClient::new(&format!("http://{address}"), None).unwrap())
}

async fn create(edge: &dyn Edge) -> SandboxId {
    let mut events = edge.create(CreateRequest::one(SandboxSpec::new("debian"))).await.unwrap();
    match events.next().await.unwrap() {
        CreateEvent::Created { sandbox, .. } => sandbox.id,
        CreateEvent::Failed { error, .. } => panic!("{error}"),
    }
}

/// Status, headers in lower case, body.
async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
) -> (u16, BTreeMap<String, String>, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let headers = head
        .lines()
        .skip(1)
        .filter_map(|l| l.split_once(": "))
        .map(|(k, v)| (k.to_lowercase(), v.to_owned()))
        .collect();
    (status, headers, body.to_owned())
}

#[tokio::test]
async fn nothing_but_health_and_the_document_is_open() {
    let cluster = cluster(vec![("e1", local())]).await;
    for path in ["/v1/health", "/v1/openapi.json"] {
        assert_eq!(ask(cluster.address, "GET", path, "").await.0, 200, "{path}");
    }
    let id = create(&cluster.client).await;
    let document: serde_json::Value =
        serde_json::from_str(&ask(cluster.address, "GET", "/v1/openapi.json", "").await.2).unwrap();
    let wrong = format!("authorization: Bearer dsec_{}\r\n", "A".repeat(43));
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", id.as_str());
        for method in item.as_object().unwrap().keys().filter(|_| path != "/v1/health") {
            for headers in
                ["", &wrong, "authorization: Basic eDp5\r\n", "authorization: Bearer\r\n", "x-api-key: \r\n"]
            {
                let (status, answered, body) =
                    ask(cluster.address, &method.to_uppercase(), &path, headers).await;
                let error: api::Error = serde_json::from_str(&body).unwrap();
                assert_eq!((status, error.code), (401, Code::Unauthenticated), "{method} {path}");
                assert_eq!(answered["www-authenticate"], "Bearer");
                assert_eq!(answered["x-request-id"], error.request_id.unwrap().as_str());
                asked += 1;
            }
        }
    }
    assert!(asked > 100, "{asked}");
    // Neither a trick of the path opens a door.
    for path in
        ["/v1/health/../sandboxes", "/v1/health%2f", "//v1/health", "/v1/sandboxes?/v1/health", "/nope"]
    {
        assert_eq!(ask(cluster.address, "GET", path, "").await.0, 401, "{path}");
    }
    cluster.client.inspect(&id).await.unwrap();
}

#[tokio::test]
async fn both_headers_take_a_key_and_a_revoked_one_is_out_at_once() {
    let cluster = cluster(vec![("e1", local())]).await;
    for headers in [
        format!("authorization: Bearer {}\r\n", cluster.key),
        format!("Authorization: bearer  {}\r\n", cluster.key),
        format!("X-API-Key: {}\r\n", cluster.key),
        format!("x-api-key: {}\r\nauthorization: Basic eDp5\r\n", cluster.key),
    ] {
        assert_eq!(ask(cluster.address, "GET", "/v1/sandboxes", &headers).await.0, 200, "{headers}");
    }
    cluster.iam.revoke_key("test").await.unwrap();
    assert_eq!(cluster.client.list(ListQuery::default()).await.unwrap_err().code, Code::Unauthenticated);
}

#[tokio::test]
async fn every_verb_is_relayed_to_a_local_and_to_a_remote_edge() {
    for edge in [local(), remote().await] {
        let cluster = cluster(vec![("e1", edge)]).await;
        let client = &cluster.client;
        let id = create(client).await;
        assert_eq!(client.inspect(&id).await.unwrap().id, id);
        assert_eq!(client.set_ttl(&id, TtlRequest { ttl_ms: 5 }).await.unwrap().expires_ms, 5);
        let inside = client.sandbox(&id);
        let stream = inside.exec(ExecRequest::argv(["echo", "hi"])).await.unwrap();
        assert_eq!(rpc::collect(stream, 100).await.unwrap().stdout.data.to_text(), "hi\n");
        let body = Box::pin(stream::iter([Ok(bytes::Bytes::from("x"))]));
        assert_eq!(inside.file_write(WriteQuery::new("/a"), body).await.unwrap().size_bytes, 1);
        let body = Box::pin(stream::iter([Ok(bytes::Bytes::from("xyz"))]));
        let image = client.import(ImportQuery::new("i", LayerKind::Base), body).await.unwrap();
        assert_eq!(client.image_list().await.unwrap(), [image]);
        assert_eq!(client.image_inspect("i:latest").await.unwrap().size_bytes, 3);
        client.image_remove("i:latest").await.unwrap();
        client.stop(&id).await.unwrap();
        assert_eq!(client.inspect(&id).await.unwrap_err().code, Code::NotFound);
        let nosuch = client.create(CreateRequest::one(SandboxSpec::new("nosuch"))).await.err().unwrap();
        assert_eq!(nosuch.code, Code::NotFound);
        assert!(nosuch.request_id.is_some());
    }
}

#[tokio::test]
async fn the_edge_in_an_id_is_where_it_goes_and_one_that_is_unknown_is_not_found() {
    let (first, second) = (local(), local());
    let cluster = cluster(vec![("e1", first.clone()), ("e2", second)]).await;
    let id = create(&*first).await;
    cluster.client.inspect(&id).await.unwrap();
    let twin: SandboxId = id.as_str().replace("sb-e1-", "sb-e2-").parse().unwrap();
    let nowhere: SandboxId = id.as_str().replace("sb-e1-", "sb-e9-").parse().unwrap();
    for id in [twin, nowhere] {
        assert_eq!(cluster.client.inspect(&id).await.unwrap_err().code, Code::NotFound);
        assert_eq!(cluster.client.stop(&id).await.unwrap_err().code, Code::NotFound);
        let inside = cluster.client.sandbox(&id);
        assert_eq!(inside.exec(ExecRequest::shell("x")).await.err().unwrap().code, Code::NotFound);
    }
    assert_eq!(cluster.client.list(ListQuery::default()).await.unwrap().len(), 1);
    let error = cluster.client.create(CreateRequest::one(SandboxSpec::new("d"))).await.err().unwrap();
    assert_eq!(error.code, Code::Unsupported);
}

#[tokio::test]
async fn without_an_edge_there_is_no_capacity() {
    let cluster = cluster(vec![]).await;
    let error = cluster.client.create(CreateRequest::one(SandboxSpec::new("d"))).await.err().unwrap();
    assert_eq!((error.code, error.retry_after_ms), (Code::NoCapacity, Some(1000)));
    assert!(cluster.client.list(ListQuery::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_key_does_not_reach_a_port_inside_and_the_apps_own_does() {
    let cluster = cluster(vec![("e1", local())]).await;
    let id = create(&cluster.client).await;
    let app = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let path = format!("/v1/sandboxes/{id}/ports/{}/http/x", app.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = app.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let answer =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", head.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.write_all(&head).await.unwrap();
        }
    });
    let bearer = format!("authorization: Bearer {}\r\n", cluster.key);
    let (status, _, seen) = ask(cluster.address, "GET", &path, &bearer).await;
    assert_eq!(status, 200);
    assert!(!seen.contains(&cluster.key) && !seen.contains("uthorization"), "{seen}");
    let both = format!("x-api-key: {}\r\nauthorization: Bearer app\r\n", cluster.key);
    let (_, _, seen) = ask(cluster.address, "GET", &path, &both).await;
    assert!(!seen.contains(&cluster.key) && seen.contains("Bearer app"), "{seen}");
}

#[tokio::test]
async fn a_sandbox_of_any_edge_is_a_runtime_of_swerex_with_the_same_keys() {
    let directory = tempfile::tempdir().unwrap();
    let iam = Iam::open(directory.path().join("iam.db")).await.unwrap();
    let key = format!("x-api-key: {}\r\n", iam.create_key("test").await.unwrap());
    for edge in [local(), remote().await] {
        let id = create(&*edge).await;
        let server = Apiserver::new(iam.clone(), [(id.edge(), edge)]);
        let address = serve(server.router_with_faces(Default::default()).await.unwrap()).await;
        let alive = format!("/swerex/{id}/is_alive");
        let (status, _, body) = ask(address, "GET", &alive, &key).await;
        assert_eq!((status, body.as_str()), (200, r#"{"is_alive":true,"message":""}"#));
        for (path, headers, expected) in [
            (alive.as_str(), "", 403),
            (&alive, "x-api-key: dsec_wrong\r\n", 401),
            ("/swerex/sb-e7-00000000000000000000000000/is_alive", &key, 404),
            ("/swerex/nope", &key, 404),
            ("/v1/sandboxes", "", 401),
            ("/v1/sandboxes", &key, 200),
        ] {
            assert_eq!(ask(address, "GET", path, headers).await.0, expected, "{path} {headers}");
        }
    }
}
