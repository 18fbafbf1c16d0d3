//! `dsec mcp --listen`.

use std::time::Instant;

use serde_json::{Value, json};
use testkit::{Node, host};

use crate::{
    OWN, S,
    client::{Listening, good},
    is_gone, no_process,
};

pub async fn http_lets_in_who_has_the_key(node: &Node) {
    let server = Listening::start(node, OWN).await;
    assert!(server.address.starts_with("127.0.0.1:"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    for key in ["", "Bearer wrong", "Bearer ", "Basic x", server.key.as_str()] {
        let answer = server.ask("POST", &[("Authorization", key)], &ping).await;
        assert_eq!(answer.status, 401, "{key}");
        assert_eq!(answer.header("WWW-Authenticate").unwrap(), "Bearer");
    }
    for (name, value) in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Host", "evil.example"),
        ("Host", "192.0.2.1"),
    ] {
        assert_eq!(server.ask("POST", &[(name, value)], &ping).await.status, 403, "{name}: {value}");
    }
    let ours = server.ask("POST", &[("Origin", "http://localhost:6274")], &ping).await.status;
    assert!(![401, 403].contains(&ours), "{ours}");
    assert_eq!(server.ask("POST", &[], &"x".repeat(17 << 20)).await.status, 413);
    assert!((400..500).contains(&server.ask("POST", &[], "not json").await.status));
    assert!((400..500).contains(&server.ask("PUT", &[], &ping).await.status));
    assert!((400..500).contains(&server.ask("GET", &[], "").await.status));
    assert_eq!(server.ask("POST", &[("Mcp-Session-Id", "nobody")], &ping).await.status, 404);
    assert_eq!(server.handshake().await.status, 200);

    let named = Listening::start_with(
        node,
        &["--key-env", "MCP_KEY", "--allow-host", "mcp.example.org"],
        &[("MCP_KEY", "hidden")],
    )
    .await;
    assert_eq!(named.handshake().await.status, 401, "the API key is not its key");
    let named = Listening { key: "hidden".into(), ..named };
    assert_eq!(named.handshake().await.status, 200);
    assert_ne!(named.ask("POST", &[("Host", "mcp.example.org")], &ping).await.status, 403);
}

pub async fn http_does_the_main_job(node: &Node) {
    let mut server = Listening::start(node, OWN).await;
    let hello = server.handshake().await;
    assert_eq!(hello.message()["result"]["serverInfo"]["name"], "dsec");
    let session = hello.header("Mcp-Session-Id").unwrap();
    let of = [("Mcp-Session-Id", session.as_str())];
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    assert_eq!(server.ask("POST", &of, &ready).await.status, 202);
    let call = |id: u64, command: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "exec", "arguments": {"command": command, "timeout_s": 600}}}).to_string()
    };
    let done = good(&server.ask("POST", &of, &call(2, "echo hi; id -un")).await.message());
    assert_eq!(done["stdout"], "hi\nuser\n");

    // One is cancelled by another request.
    let word = "86444";
    let (slow, cancel) = (
        call(3, &format!("exec sleep {word}")),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})
            .to_string(),
    );
    let asked = tokio::time::timeout(S(2), server.ask("POST", &of, &slow));
    assert!(asked.await.is_err());
    host::find(word).unwrap();
    assert_eq!(server.ask("POST", &of, &cancel).await.status, 202);
    no_process(word).await;

    // The end of a session ends its commands; the sandbox is the server's, and stays.
    let word = "86455";
    let asked = tokio::time::timeout(S(2), async {
        server.ask("POST", &of, &call(4, &format!("exec sleep {word}"))).await
    });
    assert!(asked.await.is_err());
    host::find(word).unwrap();
    assert!(server.ask("DELETE", &of, "").await.status < 300);
    no_process(word).await;
    assert_eq!(server.ask("POST", &of, &call(5, "true")).await.status, 404);

    // A client of the protocol without sessions.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    });
    let params = json!({"name": "list_sandboxes", "arguments": {}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": params}).to_string();
    let headers = [
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "list_sandboxes"),
    ];
    let rows = server.ask("POST", &headers, &body).await.message();
    let id = rows["result"]["structuredContent"]["sandboxes"][0]["sandbox"]
        .as_str()
        .unwrap_or_else(|| panic!("{rows}"))
        .to_owned();

    let pid = server.child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
    let status = tokio::time::timeout(S(20), server.child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(is_gone(node, &id).await);
}

pub async fn http_sessions_are_bounded(node: &Node) {
    let server = Listening::start(node, &[]).await;
    let mut last = String::new();
    for _ in 0..128 {
        let hello = server.handshake().await;
        assert_eq!(hello.status, 200);
        last = hello.header("Mcp-Session-Id").unwrap();
    }
    assert_eq!(server.handshake().await.status, 503);
    let of = [("Mcp-Session-Id", last.as_str())];
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let answer: Value = server.ask("POST", &of, &list).await.message();
    assert!(answer["result"]["tools"].is_array(), "who is in is served: {answer}");
    assert!(server.ask("DELETE", &of, "").await.status < 300);
    let start = Instant::now();
    while server.handshake().await.status != 200 {
        assert!(start.elapsed() < S(10));
    }
}
