//! Which sandboxes a server of `dsec mcp` acts on.

use serde_json::json;
use testkit::Node;

use crate::{OWN, client::Session, id, is_gone};

pub async fn own_sandboxes_and_no_others(node: &Node) {
    let foreign = node.sandbox().await;
    let mut session = Session::start(node, OWN).await;
    let own = id(&mut session).await;
    let more =
        session.call("create_sandbox", json!({"image": "debian", "memory_mib": 64, "cpus": 0.5})).await;
    let more = more["sandbox"].as_str().unwrap().to_owned();
    let done = session.call("exec", json!({"sandbox": more, "command": "cat /etc/hostname"})).await;
    assert_eq!(done["exit_code"], 0);
    let rows = session.call("list_sandboxes", json!({})).await;
    assert_eq!(rows["sandboxes"].as_array().unwrap().len(), 2);
    for (tool, mut arguments) in [
        ("exec", json!({"command": "id"})),
        ("stop_sandbox", json!({})),
        ("read_file", json!({"path": "/etc/passwd"})),
    ] {
        arguments["sandbox"] = foreign.id().as_str().into();
        assert_eq!(session.fail(tool, arguments).await["code"], "not_found", "{tool}");
    }
    let e = session.fail("create_sandbox", json!({"image": "debian", "ttl_s": 60})).await;
    assert_eq!(e["code"], "invalid_argument");
    assert!(session.tools().await["create_sandbox"]["inputSchema"]["properties"].get("ttl_s").is_none());
    assert_eq!(session.end().await, 0);
    assert!(is_gone(node, &own).await && is_gone(node, &more).await);
    foreign.stop().await.unwrap();
}

pub async fn one_sandbox_and_no_other(node: &Node) {
    let (one, other) = (node.sandbox().await, node.sandbox().await);
    let mut session = Session::start(node, &["--sandbox", one.id().as_str()]).await;
    let tools = session.tools().await;
    let names: Vec<&str> = tools.keys().map(String::as_str).collect();
    assert_eq!(names.join(" "), "exec exec_kill exec_output fetch_port list_dir read_file write_file");
    assert!(tools.values().all(|tool| tool["inputSchema"]["properties"].get("sandbox").is_none()));
    session.sh("echo here > mark").await;
    assert_eq!(&one.files().read("mark").await.unwrap()[..], b"here\n");
    let e = session.fail("exec", json!({"command": "id", "sandbox": other.id().as_str()})).await;
    assert_eq!(e["code"], "invalid_argument");
    let answer = session.request("tools/call", json!({"name": "stop_sandbox", "arguments": {}})).await;
    assert_eq!(answer["error"]["code"], -32602);
    one.stop().await.unwrap();
    let e = session.fail("exec", json!({"command": "id"})).await;
    assert_eq!(e["code"], "not_found");
    assert_eq!(session.end().await, 0);
    assert!(!is_gone(node, other.id().as_str()).await);
    other.stop().await.unwrap();
}

pub async fn any_sandbox_by_its_name(node: &Node) {
    let mut session = Session::start(node, &[]).await;
    let arguments = json!({"image": "debian", "name": "by-name", "ttl_s": 120, "env": {"A": "b"}});
    let made = session.call("create_sandbox", arguments).await;
    assert!((100..=120).contains(&made["ttl_s"].as_u64().unwrap()), "{made}");
    let done = session.call("exec", json!({"sandbox": "by-name", "command": "echo $A"})).await;
    assert_eq!(done["stdout"], "b\n");
    for tool in ["exec", "stop_sandbox"] {
        let arguments = if tool == "exec" { json!({"command": "true"}) } else { json!({}) };
        let e = session.fail(tool, arguments).await;
        assert_eq!(e["code"], "invalid_argument");
        assert!(e["message"].as_str().unwrap().starts_with("sandbox: which one?"), "{e}");
    }
    let e = session.fail("exec", json!({"sandbox": "nobody", "command": "true"})).await;
    assert_eq!(e["code"], "not_found");
    for arguments in [
        json!({"image": "debian", "cpus": 0}),
        json!({"image": "debian", "memory_mib": 0}),
        json!({"image": "debian", "ttl_s": 0}),
        json!({"image": ""}),
        json!({}),
    ] {
        assert_eq!(
            session.fail("create_sandbox", arguments.clone()).await["code"],
            "invalid_argument",
            "{arguments}"
        );
    }
    assert_eq!(session.fail("create_sandbox", json!({"image": "none"})).await["code"], "not_found");
    let rows = session.call("list_sandboxes", json!({})).await;
    let row = rows["sandboxes"].as_array().unwrap().iter().find(|row| row["name"] == "by-name");
    assert_eq!(row.unwrap()["sandbox"], made["sandbox"]);
    assert_eq!(session.call("stop_sandbox", json!({"sandbox": "by-name"})).await["stopped"], made["sandbox"]);
    assert_eq!(session.end().await, 0);
}

pub async fn what_is_not_there_is_told_at_the_start(node: &Node) {
    for args in [["--sandbox", "nobody"], ["--image", "none"]] {
        let out = node.cli().arg("mcp").args(args).output().unwrap();
        assert_eq!((out.status.code(), out.stdout.len()), (Some(125), 0));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("not_found") && said.contains(args[1]), "{said}");
    }
    let out = node.cli().args(["mcp", "--memory", "1G"]).output().unwrap();
    assert_eq!(out.status.code(), Some(125), "a limit without --image would be ignored");
    let out = node.cli().args(["mcp", "--listen", "0", "--key-env", "NOT_SET_AT_ALL"]).output().unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&out.stderr).contains("NOT_SET_AT_ALL"));
}
