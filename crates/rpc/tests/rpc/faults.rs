//! Bad requests: each is a clear answer, none a panic or a hang.

use api::{Code, ExecId, RequestId, limit};

use crate::wire::{Node, Raw, node, raw, request};

async fn ask(node: &Node, method: &str, path: &str, body: &str) -> Raw {
    raw(node.address, &request(method, path, "", body.as_bytes())).await
}

/// Wherever JSON is taken: wrong types, unknown fields, no JSON at all.
#[tokio::test]
async fn a_bad_body_is_named_on_every_route() {
    let node = node().await;
    let inside = format!("/v1/sandboxes/{}", node.id);
    let exec = ExecId::new();
    let cases = [
        ("POST", "/v1/sandboxes".to_owned(), r#"{"spec":{"image":7}}"#, "spec.image"),
        ("POST", "/v1/sandboxes".to_owned(), r#"{"spec":{"image":"a"},"sped":1}"#, "sped"),
        ("POST", "/v1/sandboxes".to_owned(), r#"{"spec":{"image":"a","ttl_ms":0}}"#, "ttl_ms"),
        (
            "POST",
            "/v1/sandboxes".to_owned(),
            r#"{"spec":{"image":"a","memory_bytes_max":-1}}"#,
            "memory_bytes_max",
        ),
        ("POST", "/v1/sandboxes".to_owned(), r#"{"spec":{"image":"a"},"count":99999999}"#, "count"),
        ("PUT", format!("{inside}/ttl"), r#"{"ttl_ms":"1"}"#, "ttl_ms"),
        ("PUT", format!("{inside}/ttl"), "{}", "ttl_ms"),
        ("POST", format!("{inside}/exec"), r#"{"command":7}"#, "command"),
        ("POST", format!("{inside}/exec"), r#"{"command":[]}"#, "command"),
        ("POST", format!("{inside}/exec"), r#"{"command":"x","tty":true}"#, "tty"),
        ("POST", format!("{inside}/exec"), r#"{"command":"x","stdin":"stream"}"#, "stdin"),
        ("POST", format!("{inside}/exec"), r#"{"command":"x","output_bytes_max":1e99}"#, "output_bytes_max"),
        ("POST", format!("{inside}/execs/{exec}/signal"), r#"{"signal":0}"#, "signal"),
        ("POST", format!("{inside}/execs/{exec}/signal"), r#"{"signal":[]}"#, "signal"),
        ("POST", format!("{inside}/files/mkdir"), r#"{"path":"a\u0000b"}"#, "path"),
        ("POST", format!("{inside}/files/move"), r#"{"from":"","to":"b"}"#, "from"),
        ("POST", format!("{inside}/files/move"), r#"{"from":"a"}"#, "to"),
    ];
    for (method, path, body, field) in cases {
        let answer = ask(&node, method, &path, body).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.head);
        let error = answer.error();
        assert_eq!(error.code, Code::InvalidArgument, "{path} {body}");
        assert!(error.message.contains(field), "{path} {body}: {error}");
        assert_eq!(error.request_id.unwrap().as_str(), answer.header("x-request-id").unwrap());
    }
    for path in ["/v1/sandboxes", &format!("{inside}/exec"), &format!("{inside}/files/mkdir")] {
        for body in ["", "{", "null", "[]", "\"x\"", "{} trailing", "\u{feff}{}", &"[".repeat(100_000)] {
            let answer = ask(&node, "POST", path, body).await;
            assert_eq!((answer.status, answer.error().code), (400, Code::InvalidArgument), "{path}");
        }
        let answer = raw(node.address, &request("POST", path, "", b"{\"command\":\"\xff\"}")).await;
        assert_eq!((answer.status, answer.error().code), (400, Code::InvalidArgument), "{path}");
    }
}

#[tokio::test]
async fn bad_ids_queries_and_escapes_are_refused() {
    let node = node().await;
    let inside = format!("/v1/sandboxes/{}", node.id);
    let cases = [
        ("GET", "/v1/sandboxes/nope".to_owned(), 400),
        ("GET", "/v1/sandboxes/%2e%2e".to_owned(), 400),
        ("GET", "/v1/sandboxes/..%2f..%2fetc".to_owned(), 400),
        ("GET", "/v1/sandboxes/%ff".to_owned(), 400),
        ("GET", format!("/v1/sandboxes/{}%00", node.id), 400),
        ("DELETE", "/v1/sandboxes/sb-e1-01arz3ndektsv4rrffq69g5fav".to_owned(), 404),
        ("GET", "/v1/sandboxes/sb-e1-01arz3ndektsv4rrffq69g5fav/execs".to_owned(), 404),
        ("GET", "/v1/sandboxes/x/execs".to_owned(), 400),
        ("GET", format!("{inside}/execs/ex-1"), 400),
        ("GET", format!("{inside}/execs/{}", ExecId::new()), 404),
        ("GET", format!("{inside}/execs/{}/output?wait=maybe", ExecId::new()), 400),
        ("GET", format!("{inside}/execs/{}/attach", ExecId::new()), 400),
        ("GET", format!("{inside}/files"), 400),
        ("GET", format!("{inside}/files?path="), 400),
        ("GET", format!("{inside}/files?path=%00"), 400),
        ("GET", format!("{inside}/files?path=%ff"), 400),
        ("GET", format!("{inside}/files?path=a&offset=x"), 400),
        ("GET", format!("{inside}/files?path=a&x=1"), 400),
        ("GET", format!("{inside}/files?path=a&path=b"), 400),
        ("GET", format!("{inside}/files?path={}", "a".repeat(5000)), 400),
        ("GET", format!("{inside}/files?path=/absent"), 404),
        ("GET", format!("{inside}/tar"), 400),
        ("GET", format!("{inside}/ports/0/connect"), 400),
        ("GET", format!("{inside}/ports/65536/http/"), 400),
        ("GET", format!("{inside}/ports/-1/http/"), 400),
        ("GET", "/v1/images/%2e%2e".to_owned(), 400),
        ("GET", "/v1/images/a%2fb".to_owned(), 400),
        ("GET", "/v1/images/absent".to_owned(), 404),
        ("POST", "/v1/images/import?name=../x&kind=base".to_owned(), 400),
        ("POST", "/v1/images/import?name=x&kind=top".to_owned(), 400),
        ("GET", "/v1/sandboxes?state=x".to_owned(), 400),
        ("GET", "/v1/nope".to_owned(), 404),
        ("GET", "/".to_owned(), 404),
        ("GET", "/v1/sandboxes/".to_owned(), 404),
        ("GET", "/v1/../etc/passwd".to_owned(), 404),
        ("GET", "//v1//sandboxes".to_owned(), 404),
    ];
    for (method, path, status) in cases {
        let answer = ask(&node, method, &path, "").await;
        let shown = &path[..path.len().min(120)];
        assert_eq!(answer.status, status, "{shown}: {}", String::from_utf8_lossy(&answer.body));
        assert_eq!(answer.error().code.status(), status, "{shown}");
        assert!(answer.header("x-request-id").unwrap().parse::<RequestId>().is_ok());
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let node = node().await;
    for (method, path, allow) in [
        ("PATCH", "/v1/sandboxes", "POST, GET"),
        ("POST", "/v1/images", "GET"),
        ("DELETE", "/v1/images/import", "POST"),
        ("BREW", "/v1/sandboxes", "POST, GET"),
    ] {
        let answer = ask(&node, method, path, "").await;
        assert_eq!((answer.status, answer.error().code), (405, Code::InvalidArgument), "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allow));
    }
}

#[tokio::test]
async fn too_large_is_413_whether_announced_or_not() {
    let node = node().await;
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    let announced =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999999\r\n\r\n");
    let answer = raw(node.address, announced.as_bytes()).await;
    assert_eq!((answer.status, answer.error().code), (413, Code::InvalidArgument));

    let mut chunked =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    let chunk = vec![b' '; 1 << 20];
    for _ in 0..=limit::REQUEST_BODY_BYTES_MAX >> 20 {
        chunked.extend_from_slice(b"100000\r\n");
        chunked.extend_from_slice(&chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    let answer = raw(node.address, &chunked).await;
    assert_eq!((answer.status, answer.error().code), (413, Code::InvalidArgument));
}

#[tokio::test]
async fn broken_http_is_answered_or_closed_and_the_server_lives() {
    let node = node().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET /v1/health HTTP/9.9\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(node.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    }
    node.client.health().await.unwrap();
}

#[tokio::test]
async fn a_panic_is_internal_and_busy_says_when() {
    let node = node().await;
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    let id = RequestId::new();
    let headers = format!("x-request-id: {id}\r\n");
    let answer = raw(node.address, &request("POST", &path, &headers, br#"{"command":["panic"]}"#)).await;
    assert_eq!((answer.status, answer.error().code), (500, Code::Internal));
    assert_eq!(answer.header("x-request-id"), Some(id.as_str()), "a valid id is kept");
    assert!(!answer.error().message.contains("as asked"), "what went wrong is for the log");

    let answer =
        raw(node.address, &request("POST", &path, "x-request-id: forged\r\n", br#"{"command":["busy"]}"#))
            .await;
    assert_eq!((answer.status, answer.error().code), (503, Code::NoCapacity));
    assert_eq!((answer.header("retry-after"), answer.error().retry_after_ms), (Some("3"), Some(2500)));
    assert_ne!(answer.header("x-request-id"), Some("forged"));
    node.client.health().await.unwrap();
}
