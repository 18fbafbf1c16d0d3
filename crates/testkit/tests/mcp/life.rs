//! How a server of `dsec mcp` ends, and what it leaves.

use std::time::Instant;

use libdsec::ListQuery;
use serde_json::json;
use testkit::{Node, host};

use crate::{
    OWN, S,
    client::{Session, good},
    id, is_gone, no_process,
};

pub async fn input_closed_in_the_middle(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let id = id(&mut session).await;
    let word = "86433";
    session.send_call("exec", json!({"command": ["sleep", word], "timeout_s": 600})).await;
    host::find(word).unwrap();
    // In the middle of a line, too.
    session.send_call("exec", json!({"command": "sleep 600"})).await;
    let start = Instant::now();
    assert_eq!(session.end().await, 0);
    assert!(start.elapsed() < S(6), "{:?}", start.elapsed());
    no_process(word).await;
    assert!(is_gone(node, &id).await);

    // Of a sandbox that is not its own, the command ends and the sandbox stays.
    let sandbox = node.sandbox().await;
    let mut session = Session::start(node, &["--sandbox", sandbox.id().as_str()]).await;
    session.send_call("exec", json!({"command": ["sleep", word], "timeout_s": 600})).await;
    host::find(word).unwrap();
    assert_eq!(session.end().await, 0);
    no_process(word).await;
    sandbox.stop().await.unwrap();

    // What was asked before the end is answered, where that takes no longer than a moment.
    let mut session = Session::start(node, OWN).await;
    session.sh("true").await;
    let last = session.send_call("exec", json!({"command": "echo last"})).await;
    session.close_input();
    assert_eq!(good(&session.answer(last).await)["stdout"], "last\n");
    assert_eq!(session.ended().await, 0);
    // And one that says nothing at all.
    assert_eq!(Session::spawn(node, OWN).end().await, 0);
}

pub async fn a_client_that_does_not_read(node: &Node) {
    for by_signal in [false, true] {
        let mut session = Session::start(node, OWN).await;
        let id = id(&mut session).await;
        // More than a pipe holds.
        for _ in 0..20 {
            session.send_call("exec", json!({"command": "seq 1 10000"})).await;
        }
        tokio::time::sleep(S(1)).await;
        if by_signal {
            let pid = session.child.id().unwrap().to_string();
            assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
        } else {
            session.close_input();
        }
        let start = Instant::now();
        assert_eq!(session.ended().await, 0);
        assert!(start.elapsed() < S(8), "{:?}", start.elapsed());
        assert!(is_gone(node, &id).await);
    }
}

pub async fn sigterm_leaves_nothing(node: &Node) {
    for signal in ["TERM", "INT", "HUP"] {
        let mut session = Session::start(node, OWN).await;
        let id = id(&mut session).await;
        session.send_call("exec", json!({"command": "sleep 600", "timeout_s": 600})).await;
        // The next create is in flight, perhaps.
        session.send_call("create_sandbox", json!({"image": "debian"})).await;
        let pid = session.child.id().unwrap().to_string();
        let before = mine(node, &id).await;
        assert!(std::process::Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert_eq!(session.ended().await, 0, "{signal}");
        assert!(is_gone(node, &id).await, "{signal}");
        let label = before.unwrap();
        let left = node.client().list(ListQuery { label: Some(label), name: None }).await.unwrap();
        assert!(left.is_empty(), "{signal}: {left:?}");
    }
}

/// The label of the session that a sandbox belongs to.
async fn mine(node: &Node, id: &str) -> Option<String> {
    let sandbox = node.client().get(id).await.unwrap();
    let labels = &sandbox.created().spec.labels;
    labels.iter().find(|(key, _)| *key == "dsec-mcp").map(|(key, value)| format!("{key}={value}"))
}

pub async fn kill_9_leaves_a_short_lease(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let id = id(&mut session).await;
    session.child.kill().await.unwrap();
    let sandbox = node.client().get(&id).await.unwrap();
    let info = sandbox.created();
    assert!(info.expires_ms - info.created_ms <= 10 * 60 * 1000, "{info:?}");
    sandbox.stop().await.unwrap();
}

pub async fn a_sandbox_that_ended_is_replaced(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let e = session.fail("stop_sandbox", json!({})).await;
    assert_eq!(e["code"], "not_found", "none is made to be stopped");
    session.sh("echo kept > a").await;
    assert_eq!(session.fail("read_file", json!({"path": "none"})).await["code"], "not_found");
    let first = id(&mut session).await;
    node.client().get(&first).await.unwrap().stop().await.unwrap();
    let e = session.fail("exec", json!({"command": "cat a"})).await;
    assert_eq!(e["code"], "sandbox_gone");
    assert!(e["message"].as_str().unwrap().contains("the next call gets a new one"), "{e}");
    let second = id(&mut session).await;
    assert_ne!(first, second);
    assert_eq!(session.call("stop_sandbox", json!({})).await["stopped"], second.as_str());
    assert_ne!(id(&mut session).await, second);
    assert_eq!(session.end().await, 0);
}
