//! Malformed requests over raw HTTP against the live server: each is refused by a 4xx with a code, and the server
//! goes on.
#![allow(clippy::unwrap_used)]

use std::{process::ExitCode, time::Duration};

use serde_json::{Value, json};
use testkit::{Node, tests};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

fn main() -> ExitCode {
    testkit::suite::run(
        4,
        tests![
            bodies_of_create,
            bodies_of_exec,
            bodies_of_the_rest,
            ids_and_paths,
            keys,
            an_oversize_body,
            bytes_that_are_no_http,
            frames_that_are_none,
            bad_archives,
        ],
    )
}

/// The server's host and port.
fn address(node: &Node) -> String {
    node.access().url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// Sends these bytes, reads until the other side closes or has said enough.
async fn raw(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address(node)).await.unwrap();
    // It may answer and close before it has read all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), async {
        let mut chunk = [0; 8192];
        while let Ok(n) = stream.read(&mut chunk).await {
            answer.extend_from_slice(&chunk[..n]);
            if n == 0 || answer.len() > 1 << 20 {
                break;
            }
        }
    });
    read.await.expect("the server neither answers nor closes");
    answer
}

struct Answer {
    status: u16,
    body: Value,
}

async fn call(node: &Node, method: &str, path: &str, body: &[u8]) -> Answer {
    let key = node.access().api_key;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    parse(&raw(node, &[head.as_bytes(), body].concat()).await)
}

fn parse(answer: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    // A chunked body has its lengths around the object.
    let object = body.find('{').zip(body.rfind('}')).map_or("", |(a, b)| &body[a..=b]);
    Answer { status, body: serde_json::from_str(object).unwrap_or(Value::Null) }
}

/// Refused: 4xx, with a code and a message.
async fn refused(node: &Node, method: &str, path: &str, body: &[u8]) -> Value {
    let Answer { status, body: answer } = call(node, method, path, body).await;
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    assert!((400..500).contains(&status), "{method} {path} {shown}: {status} {answer}");
    let has = answer["code"].is_string() && answer["message"].as_str().is_some_and(|m| !m.is_empty());
    assert!(has, "{method} {path} {shown}: {status} without a code: {answer}");
    answer
}

async fn alive(node: &Node) {
    assert_eq!(call(node, "GET", "/v1/images", b"").await.status, 200);
}

async fn bodies_of_create(node: &Node) {
    let bad: Vec<Value> = vec![
        json!(null),
        json!([]),
        json!("x"),
        json!({}),
        json!({"spec": {}}),
        json!({"spec": {"image": 7}}),
        json!({"spec": {"image": ""}}),
        json!({"spec": {"image": "debian", "surprise": 1}}),
        json!({"spec": {"image": "debian"}, "surprise": 1}),
        json!({"spec": {"image": "debian"}, "count": 0}),
        json!({"spec": {"image": "debian"}, "count": -1}),
        json!({"spec": {"image": "debian"}, "count": 4_000_000_000_u64}),
        json!({"spec": {"image": "debian"}, "count": 1e300}),
        json!({"spec": {"image": "debian", "memory_bytes_max": -5}}),
        json!({"spec": {"image": "debian", "memory_bytes_max": "1G"}}),
        json!({"spec": {"image": "debian", "ttl_ms": u64::MAX}}),
        json!({"spec": {"image": "debian", "name": "../x"}}),
        json!({"spec": {"image": "debian", "name": "a\u{0}b"}}),
        json!({"spec": {"image": "../../../etc/passwd"}}),
        json!({"spec": {"image": "debian", "kind": "vm"}}),
        json!({"spec": {"image": "debian", "network": "host"}}),
        json!({"spec": {"image": "debian", "env": {"A=B": "c"}}}),
        json!({"spec": {"image": "debian", "env": ["A"]}}),
        json!({"spec": {"image": "debian", "workdir": "relative"}}),
        json!({"spec": {"image": "debian", "toolkits": vec!["t"; 1000]}}),
        json!({"spec": {"image": "debian", "hostname": "-x"}}),
    ];
    for body in bad {
        refused(node, "POST", "/v1/sandboxes", body.to_string().as_bytes()).await;
    }
    let deep = "[".repeat(100_000);
    for body in [&b""[..], b"{", b"\xff\xfe", b"{\"spec\":{\"image\":\"\xff\"}}", b"\0", deep.as_bytes()] {
        refused(node, "POST", "/v1/sandboxes", body).await;
    }
    let listed = call(node, "GET", "/v1/sandboxes?label=none=none", b"").await;
    assert_eq!(listed.status, 200);
    alive(node).await;
}

async fn bodies_of_exec(node: &Node) {
    let sandbox = node.sandbox().await;
    let path = format!("/v1/sandboxes/{}/exec", sandbox.id());
    let bad: Vec<Value> = vec![
        json!({}),
        json!({"command": []}),
        json!({"command": [""]}),
        json!({"command": ["a\u{0}"]}),
        json!({"command": 7}),
        json!({"command": [7]}),
        json!({"command": "true", "tty": true}),
        json!({"command": "true", "timeout_ms": 0}),
        json!({"command": "true", "timeout_ms": -1}),
        json!({"command": "true", "cwd": ""}),
        json!({"command": "true", "env": {"": ""}}),
        json!({"command": "true", "user": "nosuch"}),
        json!({"command": "true", "user": "-1"}),
        json!({"command": "true", "user": "99999999999"}),
        json!({"command": "true", "pty": {"rows": 70000, "cols": 1}}),
        json!({"command": "true", "stdin": {"data": {"base64": "!"}}}),
        json!({"command": "true", "stdin": "nosuch"}),
        json!({"command": "true", "output_bytes_max": u64::MAX}),
        json!({"command": ["echo", "x".repeat(200_000)]}),
    ];
    for body in bad {
        refused(node, "POST", &path, body.to_string().as_bytes()).await;
    }
    let empty =
        call(node, "POST", &path, json!({"command": "id -u", "user": ""}).to_string().as_bytes()).await;
    assert_ne!(empty.body["stdout"]["data"], json!("0\n"), "an empty user is not root: {}", empty.body);
    let fine = call(node, "POST", &path, json!({"command": "echo hi"}).to_string().as_bytes()).await;
    assert_eq!((fine.status, &fine.body["exit"]["code"]), (200, &json!(0)), "{}", fine.body);
    sandbox.stop().await.unwrap();
}

async fn bodies_of_the_rest(node: &Node) {
    let sandbox = node.sandbox().await;
    let exec = sandbox.exec(["sleep", "100"]).detach().await.unwrap();
    let at = |rest: &str| format!("/v1/sandboxes/{}{rest}", sandbox.id());
    let signal = at(&format!("/execs/{exec}/signal"));
    let cases: Vec<(&str, String, Value)> = vec![
        ("POST", signal.clone(), json!({"signal": 0})),
        ("POST", signal.clone(), json!({"signal": 65})),
        ("POST", signal.clone(), json!({"signal": "KILL"})),
        ("POST", signal, json!({})),
        ("PUT", at("/ttl"), json!({"ttl_ms": 0})),
        ("PUT", at("/ttl"), json!({"ttl": 5})),
        ("POST", at("/files/mkdir"), json!({"path": ""})),
        ("POST", at("/files/mkdir"), json!({"path": "/tmp/x", "surprise": 1})),
        ("POST", at("/files/move"), json!({"from": "/nosuch", "to": "/x"})),
        ("POST", at("/files/move"), json!({"from": "/a\u{0}", "to": "/x"})),
    ];
    for (method, path, body) in cases {
        refused(node, method, &path, body.to_string().as_bytes()).await;
    }
    for query in [
        "",
        "?path=",
        "?path=%00",
        "?path=/tmp/%00x",
        "?path=/x&offset=-1",
        "?path=/x&surprise=1",
        "?path=%ff%fe",
        "?path=/nosuch",
        "?path=/tmp/../../../../../nosuch",
    ] {
        refused(node, "GET", &at(&format!("/files{query}")), b"").await;
    }
    let long = "a/".repeat(4000);
    refused(node, "GET", &at(&format!("/files?path={long}")), b"").await;
    // A path cannot lead out: this is the sandbox's own file.
    let own = sandbox.exec(["cat", "/etc/passwd"]).output().await.unwrap();
    assert_eq!(sandbox.files().read("/../../../../../../../../etc/passwd").await.unwrap(), own.stdout.data.0);
    sandbox.stop().await.unwrap();
}

async fn ids_and_paths(node: &Node) {
    let sandbox = node.sandbox().await;
    let id = sandbox.id().to_string();
    let unknown = format!("{}0", &id[..id.len() - 1]);
    let foreign = id.replacen("e1", "zz", 1);
    for bad in [
        "x",
        "sb-e1-x",
        &unknown,
        &foreign,
        "..",
        "%2e%2e",
        "%00",
        "%ff",
        "sb-e1-%2e%2e%2f%2e%2e%2fetc",
        &"a".repeat(5000),
    ] {
        if *bad == id {
            continue;
        }
        refused(node, "GET", &format!("/v1/sandboxes/{bad}"), b"").await;
        refused(node, "DELETE", &format!("/v1/sandboxes/{bad}"), b"").await;
        refused(node, "POST", &format!("/v1/sandboxes/{bad}/exec"), b"{\"command\":\"true\"}").await;
        refused(node, "GET", &format!("/v1/sandboxes/{id}/execs/{bad}"), b"").await;
    }
    for path in [
        "/",
        "/v1",
        "/v4/sandboxes",
        "/v1/nosuch",
        "/v1/sandboxes/../../etc/passwd",
        "//",
        "/v1/images/..%2f..%2fetc",
    ] {
        refused(node, "GET", path, b"").await;
    }
    for (method, path) in [
        ("PATCH", "/v1/sandboxes"),
        ("PUT", "/v1/sandboxes"),
        ("DELETE", "/v1/images"),
        ("BREW", "/v1/sandboxes"),
    ] {
        refused(node, method, path, b"").await;
    }
    for port in ["0", "65536", "-1", "x"] {
        refused(node, "GET", &format!("/v1/sandboxes/{id}/ports/{port}/"), b"").await;
    }
    sandbox.stop().await.unwrap();
}

async fn keys(node: &Node) {
    let long = "k".repeat(6000);
    for header in [
        "",
        "authorization: Bearer x\r\n",
        "authorization: Basic eDp5\r\n",
        "x-api-key: \r\n",
        "authorization: Bearer \u{e9}\r\n",
        &format!("x-api-key: {long}\r\n"),
    ] {
        let request = format!("GET /v1/sandboxes HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
        let answer = parse(&raw(node, request.as_bytes()).await);
        assert_eq!((answer.status, &answer.body["code"]), (401, &json!("unauthenticated")), "{header}");
    }
    alive(node).await;
}

async fn an_oversize_body(node: &Node) {
    let body = vec![b' '; 9 << 20];
    refused(node, "POST", "/v1/sandboxes", &body).await;
    // Announced, never sent.
    let key = node.access().api_key;
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 99999999999\r\nconnection: close\r\n\r\n"
    );
    let answer = parse(&raw(node, head.as_bytes()).await);
    assert!((400..500).contains(&answer.status), "{}", answer.status);
    alive(node).await;
}

async fn bytes_that_are_no_http(node: &Node) {
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(50_000));
    let bad: Vec<&[u8]> = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        many.as_bytes(),
    ];
    for bytes in bad {
        let mut stream = TcpStream::connect(address(node)).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(Duration::from_secs(60), read).await.expect("never closed");
        if !answer.is_empty() {
            let status = parse(&answer).status;
            assert!(
                (400..506).contains(&status) && status != 500,
                "{:?}: {status}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
            );
        }
        alive(node).await;
    }
}

async fn frames_that_are_none(node: &Node) {
    let sandbox = node.sandbox().await;
    let key = node.access().api_key;
    let body = json!({"command": ["cat"], "stdin": "stream"}).to_string();
    let head = format!(
        "POST /v1/sandboxes/{}/exec HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\nconnection: upgrade\r\nupgrade: dsec-frames\r\ncontent-length: {}\r\n\r\n{body}",
        sandbox.id(),
        body.len()
    );
    let garbage: [&[u8]; 4] =
        [b"\x40\xff\xff\xff\xff", b"\xee\0\0\0\0", b"\x42\0\0\0\x01x", b"\x43\0\0\0\x04\0\0\x27\x0f"];
    for bytes in garbage {
        let mut stream = TcpStream::connect(address(node)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 8192];
        let n = stream.read(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..n]).into_owned();
        assert!(text.starts_with("HTTP/1.1 101"), "{text}");
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        drop(stream);
        alive(node).await;
        assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    }
    sandbox.stop().await.unwrap();
}

async fn bad_archives(node: &Node) {
    for query in [
        "",
        "?name=x",
        "?name=../x&kind=base",
        "?name=x&kind=nosuch",
        "?name=x&kind=base&prefix=../x",
        "?name=x&kind=base&owner=root",
    ] {
        refused(node, "POST", &format!("/v1/images/import{query}"), b"").await;
    }
    let noise: Vec<u8> = (0..20_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let gzip = [&b"\x1f\x8b\x08\0\0\0\0\0"[..], &noise].concat();
    let zstd = [&b"\x28\xb5\x2f\xfd"[..], &noise].concat();
    for body in [&noise[..], &gzip, &zstd, b"x"] {
        refused(node, "POST", "/v1/images/import?name=bad&kind=base", body).await;
    }
    assert_eq!(call(node, "GET", "/v1/images/bad", b"").await.status, 404, "nothing half-made is listed");
    let sandbox = node.sandbox().await;
    let path = format!("/v1/sandboxes/{}/tar?path=/tmp", sandbox.id());
    refused(node, "PUT", &path, &noise).await;
    sandbox.stop().await.unwrap();
    alive(node).await;
}
