//! `dsec mcp`, the real binary on a real node, spoken to in lines of JSON and in HTTP.
#![allow(clippy::unwrap_used)]

#[path = "mcp/client.rs"]
mod client;
#[path = "mcp/http.rs"]
mod http;
#[path = "mcp/life.rs"]
mod life;
#[path = "mcp/scope.rs"]
mod scope;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use client::{Session, bad, good};
use http::{http_does_the_main_job, http_lets_in_who_has_the_key, http_sessions_are_bounded};
use libdsec::Code;
use life::{
    a_client_that_does_not_read, a_sandbox_that_ended_is_replaced, input_closed_in_the_middle,
    kill_9_leaves_a_short_lease, sigterm_leaves_nothing,
};
use scope::{
    any_sandbox_by_its_name, one_sandbox_and_no_other, own_sandboxes_and_no_others,
    what_is_not_there_is_told_at_the_start,
};
use serde_json::json;
use testkit::{Node, host, tests};

const S: fn(u64) -> Duration = Duration::from_secs;
const OWN: &[&str] = &["--image", "debian"];

fn main() -> ExitCode {
    testkit::suite::run(
        4,
        tests![
            a_session_does_the_main_job,
            tools_say_what_they_do,
            background_commands,
            files_text_and_not,
            a_port_inside,
            output_is_bounded_and_clean,
            bad_arguments_are_answers,
            bad_lines_do_not_end_it,
            what_is_huge_is_refused,
            two_calls_at_once,
            too_many_calls_are_told,
            a_cancelled_call_kills_its_command,
            input_closed_in_the_middle,
            a_client_that_does_not_read,
            sigterm_leaves_nothing,
            kill_9_leaves_a_short_lease,
            a_sandbox_that_ended_is_replaced,
            own_sandboxes_and_no_others,
            one_sandbox_and_no_other,
            any_sandbox_by_its_name,
            what_is_not_there_is_told_at_the_start,
            http_lets_in_who_has_the_key,
            http_does_the_main_job,
            http_sessions_are_bounded,
        ],
    )
}

/// The sandbox that a session's calls use.
async fn id(session: &mut Session) -> String {
    session.sh("true").await;
    let rows = session.call("list_sandboxes", json!({})).await;
    rows["sandboxes"][0]["sandbox"].as_str().unwrap().to_owned()
}

async fn is_gone(node: &Node, id: &str) -> bool {
    matches!(node.client().get(id).await, Err(e) if e.code == Code::NotFound)
}

/// Within a few seconds no process has this argument.
async fn no_process(word: &str) {
    let start = Instant::now();
    while !host::with_argument(word).is_empty() {
        assert!(start.elapsed() < S(10), "`{word}` still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_session_does_the_main_job(node: &Node) {
    let mut session = Session::spawn(node, OWN);
    let hello = session.shake_hands().await;
    assert_eq!(hello["serverInfo"]["name"], "dsec");
    assert!(hello["instructions"].as_str().unwrap().contains("made at the first use"));
    session.tools().await;
    let rows = session.call("list_sandboxes", json!({})).await;
    assert_eq!(rows["sandboxes"], json!([]), "none before the first use");

    let done = session.call("exec", json!({"command": "echo out; echo err >&2; exit 3"})).await;
    assert_eq!((&done["exit_code"], &done["reason"]), (&json!(3), &json!("exited")));
    assert_eq!((&done["stdout"], &done["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&done["truncated"], &done["running"]), (&json!(false), &json!(false)));

    let arguments = json!({
        "command": ["sh", "-c", "cat; echo $A; pwd; id -un; echo \"$1\"", "sh", "a  b"],
        "env": {"A": "b"}, "cwd": "/tmp", "user": "root", "stdin": "in\n",
    });
    assert_eq!(session.call("exec", arguments).await["stdout"], "in\nb\n/tmp\nroot\na  b\n");
    let late = session.call("exec", json!({"command": "echo A; sleep 60", "timeout_s": 1})).await;
    assert_eq!(
        (&late["reason"], &late["exit_code"], &late["stdout"]),
        (&json!("timeout"), &json!(137), &json!("A\n"))
    );

    let id = id(&mut session).await;
    let start = Instant::now();
    assert_eq!(session.end().await, 0);
    assert!(start.elapsed() < S(5), "a client kills what does not end by itself");
    assert!(is_gone(node, &id).await);
}

async fn tools_say_what_they_do(node: &Node) {
    let mut session = Session::start(node, &[]).await;
    let tools = session.tools().await;
    let names: Vec<&str> = tools.keys().map(String::as_str).collect();
    let all = "create_sandbox exec exec_kill exec_output fetch_port list_dir list_images list_sandboxes read_file stop_sandbox write_file";
    assert_eq!(names.join(" "), all);
    for (name, tool) in &tools {
        assert!(tool["description"].as_str().unwrap().len() > 40, "{name}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{name}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{name}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{name}");
        let fields = tool["inputSchema"]["properties"].as_object().unwrap();
        assert!(
            fields.values().all(|field| field["type"].is_string()
                || field["anyOf"].is_array()
                || field["enum"].is_array()),
            "{tool}"
        );
        let hints = &tool["annotations"];
        let reads = ["exec_output", "list_dir", "list_images", "list_sandboxes", "read_file"]
            .contains(&name.as_str());
        assert_eq!(hints["readOnlyHint"], reads, "{name}");
        assert_eq!(hints["destructiveHint"], !reads && name != "create_sandbox", "{name}");
        assert!(hints["title"].is_string() && hints["openWorldHint"].is_boolean(), "{name}");
    }
    assert_eq!(session.end().await, 0);
}

async fn background_commands(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let command = "echo one; echo err >&2; read line < fifo; printf 'caf\\303\\251 two'; exit 4";
    session.sh("mkfifo fifo").await;
    let started = session.call("exec", json!({"command": command, "background": true})).await;
    assert_eq!((&started["running"], started.get("exit_code")), (&json!(true), None));
    let exec_id = started["exec_id"].clone();
    let first = session.call("exec_output", json!({"exec_id": exec_id, "wait_s": 10})).await;
    assert_eq!((&first["running"], &first["stdout"]), (&json!(true), &json!("one\n")), "{first}");
    let next = json!({
        "exec_id": exec_id, "wait_s": 1,
        "stdout_offset": first["next_stdout_offset"], "stderr_offset": first["next_stderr_offset"],
    });
    let nothing = session.call("exec_output", next.clone()).await;
    assert_eq!((&nothing["stdout"], &nothing["running"]), (&json!(""), &json!(true)), "{nothing}");
    session.sh("echo > fifo").await;
    let mut text = String::new();
    let mut at = json!({"exec_id": exec_id, "wait_s": 10});
    // In small pieces, that cut the two bytes of a character.
    for _ in 0..20 {
        at["max_output_chars"] = 8.into();
        let part = session.call("exec_output", at.clone()).await;
        text += part["stdout"].as_str().unwrap();
        at["stdout_offset"] = part["next_stdout_offset"].clone();
        at["stderr_offset"] = part["next_stderr_offset"].clone();
        if part["running"] == false {
            assert_eq!((&part["exit_code"], &part["reason"]), (&json!(4), &json!("exited")));
            break;
        }
    }
    assert_eq!(text, "one\ncafé two");
    assert_eq!(session.call("exec_kill", json!({"exec_id": exec_id})).await["ended_before"], true);

    let word = "86411";
    let long = session
        .call("exec", json!({"command": format!("sleep {word} & sleep {word}"), "background": true}))
        .await;
    host::find(word).unwrap();
    let killed = session.call("exec_kill", json!({"exec_id": long["exec_id"]})).await;
    assert_eq!(killed["ended_before"], false);
    let end = session.call("exec_output", json!({"exec_id": long["exec_id"], "wait_s": 10})).await;
    assert_eq!((&end["running"], &end["exit_code"]), (&json!(false), &json!(137)), "{end}");
    no_process(word).await;
    let e = session.fail("exec_output", json!({"exec_id": "ex-01m8qd4dpweyhs4cat4vmkghbf"})).await;
    assert_eq!(e["code"], "not_found");
    assert_eq!(session.end().await, 0);
}

async fn files_text_and_not(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let text = "0123456789 ≤ \u{1b}[31m\n";
    let wrote = session.call("write_file", json!({"path": "a/b.txt", "content": text})).await;
    assert_eq!(wrote["size_bytes"], text.len());
    let read = session.call("read_file", json!({"path": "a/b.txt"})).await;
    assert_eq!(read["content"], text.replace('\u{1b}', "\u{fffd}"));
    assert_eq!((&read["control_characters_replaced"], read.get("next_offset")), (&json!(1), None));
    // A character cut in two is given whole, by the piece that has its start.
    let part = session.call("read_file", json!({"path": "a/b.txt", "offset": 8, "limit": 4})).await;
    assert_eq!((&part["content"], &part["next_offset"]), (&json!("89 "), &json!(11)));
    let part = session.call("read_file", json!({"path": "a/b.txt", "offset": 11, "limit": 4})).await;
    assert_eq!((&part["content"], &part["next_offset"]), (&json!("≤ "), &json!(15)));
    session.call("write_file", json!({"path": "a/b.txt", "content": "end", "append": true})).await;
    assert!(session.sh("cat a/b.txt").await.ends_with("\nend"));

    session.call("write_file", json!({"path": "bin", "content": "AP9B", "encoding": "base64"})).await;
    assert_eq!(session.sh("od -An -tx1 bin").await.trim(), "00 ff 41");
    let e = session.fail("read_file", json!({"path": "bin"})).await;
    assert_eq!(e["code"], "invalid_argument");
    assert!(e["message"].as_str().unwrap().contains("base64"), "{e}");
    let read = session.call("read_file", json!({"path": "bin", "encoding": "base64"})).await;
    assert_eq!((&read["content"], &read["size_bytes"]), (&json!("AP9B"), &json!(3)));
    let e = session.fail("write_file", json!({"path": "x", "content": "*", "encoding": "base64"})).await;
    assert_eq!(e["code"], "invalid_argument");

    session.sh("ln -s a link; touch \"$(printf 'new\\nline')\"").await;
    let list = session.call("list_dir", json!({"depth": 2})).await;
    let paths: Vec<&str> =
        list["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert!(
        paths.iter().any(|p| p.ends_with("a/b.txt")) && paths.iter().any(|p| p.ends_with("new line")),
        "{paths:?}"
    );
    session.sh("mkdir many; cd many; seq 1 1500 | xargs touch").await;
    let many = session.call("list_dir", json!({"path": "many"})).await;
    assert_eq!((&many["total"], &many["truncated"]), (&json!(1500), &json!(true)));
    assert!(many["entries"].as_array().unwrap().len() <= 1000);

    for (tool, arguments, code) in [
        ("read_file", json!({"path": "none"}), "not_found"),
        ("read_file", json!({"path": "a"}), "is_directory"),
        ("read_file", json!({"path": "/etc/shadow"}), "permission_denied"),
        ("read_file", json!({"path": "a/b.txt", "limit": 2_000_000}), "invalid_argument"),
        ("write_file", json!({"path": "/etc/new", "content": ""}), "permission_denied"),
        ("list_dir", json!({"path": "none"}), "not_found"),
        ("list_dir", json!({"depth": 9}), "invalid_argument"),
    ] {
        assert_eq!(session.fail(tool, arguments.clone()).await["code"], code, "{tool} {arguments}");
    }
    session.call("write_file", json!({"path": "/etc/new", "content": "x", "user": "root"})).await;
    let proc = session.call("read_file", json!({"path": "/proc/version"})).await;
    assert!(proc["content"].as_str().unwrap().starts_with("Linux"), "{proc}");
    assert_eq!(session.end().await, 0);
}

const SERVER: &str = r#"
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.answer(b'x' * 100000 if self.path == '/big' else b'\x00\xff' if self.path == '/bin' else b'hi ' + self.path.encode() + b' ' + self.headers.get('X-A', '-').encode() + b'\x1b')
    def do_POST(self): self.answer(self.rfile.read(int(self.headers['Content-Length']))[::-1], 201)
    def answer(self, body, status=200):
        self.send_response(status); self.send_header('X-B', 'c'); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()
"#;

async fn a_port_inside(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let e = session.fail("fetch_port", json!({"port": 8000})).await;
    assert!(["not_found", "conflict"].contains(&e["code"].as_str().unwrap()), "{e}");
    session.call("exec", json!({"command": ["python3", "-c", SERVER], "background": true})).await;
    let start = Instant::now();
    let arguments = json!({"port": 8000, "path": "/a?b=c", "headers": {"X-A": "v"}});
    let page = loop {
        let answer =
            session.request("tools/call", json!({"name": "fetch_port", "arguments": arguments})).await;
        if answer["result"]["isError"] == false {
            break good(&answer);
        }
        assert!(start.elapsed() < S(30), "{answer}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!((&page["status"], &page["body"]), (&json!(200), &json!("hi /a?b=c v\u{fffd}")));
    assert_eq!(page["headers"]["x-b"], "c");
    let page = session.call("fetch_port", json!({"port": 8000, "method": "POST", "body": "abc"})).await;
    assert_eq!((&page["status"], &page["body"]), (&json!(201), &json!("cba")));
    let page = session.call("fetch_port", json!({"port": 8000, "path": "/big"})).await;
    assert_eq!((page["body"].as_str().unwrap().len(), &page["truncated"]), (30_000, &json!(true)));
    let page = session.call("fetch_port", json!({"port": 8000, "path": "/bin"})).await;
    assert_eq!((&page["binary"], &page["body"]), (&json!(true), &json!("")));
    for arguments in [
        json!({"port": 0}),
        json!({"port": 70000}),
        json!({"port": 8000, "path": "no-slash"}),
        json!({"port": 8000, "path": "/a b"}),
        json!({"port": 8000, "method": "CONNECT"}),
        json!({"port": 8000, "method": "a b"}),
        json!({"port": 8000, "headers": {"Content-Length": "9"}}),
        json!({"port": 8000, "headers": {"a": "b\r\nc: d"}}),
        json!({"port": 8000, "timeout_s": 0}),
    ] {
        assert_eq!(
            session.fail("fetch_port", arguments.clone()).await["code"],
            "invalid_argument",
            "{arguments}"
        );
    }
    // One that takes the connection and says nothing.
    let silent = "import socket,time; s=socket.create_server(('127.0.0.1',8001)); print('up',flush=True); time.sleep(600)";
    let silent =
        session.call("exec", json!({"command": ["python3", "-c", silent], "background": true})).await;
    session.call("exec_output", json!({"exec_id": silent["exec_id"], "wait_s": 20})).await;
    let e = session.fail("fetch_port", json!({"port": 8001, "timeout_s": 1})).await;
    assert_eq!(e["code"], "deadline_exceeded");
    assert_eq!(session.end().await, 0);
}

async fn output_is_bounded_and_clean(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let done = session.call("exec", json!({"command": "yes", "timeout_s": 1})).await;
    let out = done["stdout"].as_str().unwrap();
    assert!(out.len() < 30_100 && out.starts_with("y\ny\n") && out.ends_with("y\n"), "{}", out.len());
    assert!(out.contains(" bytes left out ...]") && done["truncated"] == true);
    let done = session.call("exec", json!({"command": "seq 1 20000; seq 1 20000 >&2"})).await;
    let (out, err) = (done["stdout"].as_str().unwrap(), done["stderr"].as_str().unwrap());
    assert!(out.len() + err.len() < 30_200 && out.starts_with("1\n2\n") && err.ends_with("19999\n20000\n"));
    let done = session.call("exec", json!({"command": "seq 1 2000", "max_output_chars": 20})).await;
    assert_eq!(done["stdout"], "1\n2\n3\n4\n5\n\n[... 8873 bytes left out ...]\n1999\n2000\n");
    let done = session.call("exec", json!({"command": "printf 'a\\033[31m\\000\\377b\\tc\\r\\n'"})).await;
    assert_eq!(done["stdout"], "a\u{fffd}[31m\u{fffd}\u{fffd}b\tc\r\n");
    let e = session.fail("exec", json!({"command": "true", "max_output_chars": 1_000_000})).await;
    assert_eq!(e["code"], "invalid_argument");
    assert_eq!(session.end().await, 0);
}

async fn bad_arguments_are_answers(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    for (arguments, says) in [
        (json!({}), "missing field `command`"),
        (json!({"command": 7}), "command: expected a string"),
        (json!({"command": "true", "surprise": 1}), "unknown field `surprise`"),
        (json!({"command": "true", "env": {"A": 1}}), "env.A"),
        (json!({"command": "true", "timeout_s": "ten"}), "timeout_s"),
        (json!({"command": "true", "timeout_s": 0}), "timeout_s"),
        (json!({"command": "true", "timeout_s": 99999}), "timeout_s"),
        (json!({"command": "true", "timeout_s": -1}), "timeout_s"),
        (json!({"command": []}), "command"),
        (json!({"command": "a\0b"}), "NUL"),
        (json!({"command": "true", "env": {"A=B": "c"}}), "env"),
        (json!({"command": "true", "sandbox": 7}), "sandbox"),
    ] {
        let e = session.fail("exec", arguments.clone()).await;
        assert_eq!(e["code"], "invalid_argument", "{arguments}: {e}");
        assert!(e["message"].as_str().unwrap().contains(says), "{arguments}: {e}");
    }
    // An argument that is null is one left out.
    let done = session.call("exec", json!({"command": "true", "cwd": null, "sandbox": null})).await;
    assert_eq!(done["exit_code"], 0);
    let done = session.call("exec", json!({"command": ["no-such-command"]})).await;
    assert_eq!((&done["exit_code"], &done["reason"]), (&json!(127), &json!("not_started")));

    let answer = session.request("tools/call", json!({"name": "rm_rf"})).await;
    assert_eq!(answer["error"]["code"], -32602);
    let answer = session.request("tools/call", json!({"name": "list_images"})).await;
    assert_eq!(good(&answer)["images"][0]["image"], "debian:latest");
    assert_eq!(session.end().await, 0);
}

async fn bad_lines_do_not_end_it(node: &Node) {
    let mut session = Session::spawn(node, OWN);
    // Before the handshake.
    let id = session.send("tools/list", json!({})).await;
    assert!(session.answer(id).await["error"]["code"].is_i64());
    session.shake_hands().await;
    for line in [
        "",
        "not json",
        "{",
        "\u{1b}\u{0}",
        "[]",
        "7",
        "{}",
        "{\"jsonrpc\":\"1.0\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":{}}",
    ] {
        session.line(line).await;
        let answer = session.request("ping", json!({})).await;
        assert_eq!(answer["result"], json!({}), "after {line:?}");
    }
    let deep = "[".repeat(100_000);
    session
        .line(&format!("{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\",\"params\":{deep}"))
        .await;
    assert_eq!(session.request("no/such/method", json!({})).await["error"]["code"], -32601);
    assert!(session.request("tools/call", json!({"name": 7})).await["error"]["code"].is_i64());
    assert!(
        session.request("tools/call", json!({"name": "exec", "arguments": "x"})).await["error"]["code"]
            .is_i64()
    );
    session
        .line(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12345}})
                .to_string(),
        )
        .await;
    assert_eq!(session.sh("echo still here").await, "still here\n");
    assert_eq!(session.end().await, 0);
}

async fn what_is_huge_is_refused(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let e = session.fail("write_file", json!({"path": "x", "content": "y".repeat(9 << 20)})).await;
    assert_eq!(e["code"], "invalid_argument");
    let e = session.fail("exec", json!({"command": ["true", "y".repeat(200_000)]})).await;
    assert_eq!(e["code"], "invalid_argument");
    let e = session.fail("exec", json!({"command": "true", "timeout_s": "z".repeat(1 << 20)})).await;
    assert!(e["message"].as_str().unwrap().len() < 3_000, "the bad argument is not sent back whole");
    let answer = session.request("tools/call", json!({"name": "n".repeat(1 << 20)})).await;
    assert!(answer["error"]["message"].as_str().unwrap().len() < 1_000);
    let done = session.call("exec", json!({"command": "wc -c", "stdin": "s".repeat(6 << 20)})).await;
    assert_eq!(done["stdout"], "6291456\n");
    // Over the bound of a line there is no answer, and no end.
    session.line(&"w".repeat(65 << 20)).await;
    assert_eq!(session.sh("echo still here").await, "still here\n");
    assert_eq!(session.end().await, 0);
}

async fn two_calls_at_once(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    // Both before there is a sandbox: it is made once.
    let (a, b) = (
        session.send_call("exec", json!({"command": "mkfifo fifo; echo a"})).await,
        session.send_call("exec", json!({"command": "echo b"})).await,
    );
    assert_eq!(good(&session.answer(b).await)["stdout"], "b\n");
    assert_eq!(good(&session.answer(a).await)["stdout"], "a\n");
    // The first cannot end before the second runs.
    let slow =
        session.send_call("exec", json!({"command": "read x < fifo; echo slow; cat", "stdin": "in"})).await;
    assert_eq!(session.sh("echo > fifo; echo fast").await, "fast\n");
    assert_eq!(good(&session.answer(slow).await)["stdout"], "slow\nin");
    let rows = session.call("list_sandboxes", json!({})).await;
    assert_eq!(rows["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(session.end().await, 0);
}

async fn too_many_calls_are_told(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    session.sh("true").await;
    let mut calls = Vec::new();
    for _ in 0..70 {
        calls.push(session.send_call("exec", json!({"command": "sleep 2"})).await);
    }
    let mut refused = 0;
    for id in calls {
        let answer = session.answer(id).await;
        if answer["result"]["isError"] == true {
            assert_eq!(bad(&answer)["code"], "rate_limited");
            refused += 1;
        }
    }
    assert!((1..=6).contains(&refused), "{refused}");
    assert_eq!(session.end().await, 0);
}

async fn a_cancelled_call_kills_its_command(node: &Node) {
    let mut session = Session::start(node, OWN).await;
    let word = "86422";
    let id = session.send_call("exec", json!({"command": ["sleep", word], "timeout_s": 600})).await;
    host::find(word).unwrap();
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}});
    session.line(&cancel.to_string()).await;
    no_process(word).await;
    let after = session.send_call("exec", json!({"command": "echo after"})).await;
    let message = session.message().await.unwrap();
    assert_eq!(message["id"], after, "a cancelled call has no answer");
    assert_eq!(session.end().await, 0);
}
