//! Death of each process of the platform: the server, forge, an agent. Case 68 of the black-box cases and more.
#![allow(clippy::unwrap_used)]

use std::{process::ExitCode, time::Duration};

use futures_util::{StreamExt, stream};
use libdsec::{Client, Code, ExecId, Sandbox, SandboxSpec, State};
use testkit::{Node, host, tests};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    testkit::suite::run(
        1,
        tests![
            case_68_twenty_sandboxes_survive_the_server,
            expired_while_the_server_was_down_is_reaped,
            three_kills_in_a_row_lose_no_output,
            forge_killed,
            agent_killed_is_broken_and_stops,
            init_killed_is_broken_and_stops,
            server_and_forge_killed_together,
        ],
    )
}

/// Prints 0, 1, 2 … up to `last`.
fn counter(last: u32) -> String {
    format!("i=0; while [ $i -le {last} ]; do echo $i; i=$((i+1)); sleep 0.05; done; exit 9")
}

fn sequence(last: u32) -> String {
    (0..=last).map(|i| format!("{i}\n")).collect()
}

async fn again(client: &Client, sandbox: &Sandbox) -> Sandbox {
    client.get(sandbox.id().as_str()).await.unwrap_or_else(|e| panic!("{}: {e}", sandbox.id()))
}

async fn whole(sandbox: &Sandbox, exec: &ExecId) -> (String, i32) {
    let process = sandbox.attach(exec, 0, 0).await.unwrap();
    let out = tokio::time::timeout(S(120), process.output()).await.expect("no end").unwrap();
    (out.stdout_text(), out.exit.code)
}

async fn case_68_twenty_sandboxes_survive_the_server(node: &Node) {
    let mut batch = node.client().create_many(20, node.spec());
    let mut boxes = Vec::new();
    while let Some(sandbox) = batch.next().await {
        boxes.push(sandbox.unwrap());
    }
    let mut execs = Vec::new();
    for sandbox in &boxes {
        sandbox.files().write("/tmp/kept", sandbox.id().as_str().to_owned()).await.unwrap();
        execs.push(sandbox.sh(counter(60)).detach().await.unwrap());
    }
    // One that was attached when the server died.
    let mut attached = boxes[0].attach(&execs[0], 0, 0).await.unwrap();
    attached.next().await.unwrap();
    node.restart_kill9().unwrap();
    let client = node.client();
    assert_eq!(client.list(Default::default()).await.unwrap().len(), 20);
    let check = |(sandbox, exec): (Sandbox, ExecId)| {
        let client = client.clone();
        async move {
            let sandbox = again(&client, &sandbox).await;
            assert_eq!(sandbox.info().await.unwrap().state, State::Running);
            assert_eq!(sandbox.files().read("/tmp/kept").await.unwrap(), sandbox.id().as_str());
            assert_eq!(sandbox.exec(["echo", "new"]).output().await.unwrap().stdout_text(), "new\n");
            assert_eq!(whole(&sandbox, &exec).await, (sequence(60), 9), "{}", sandbox.id());
            sandbox.stop().await.unwrap();
        }
    };
    stream::iter(boxes.into_iter().zip(execs)).map(check).buffer_unordered(8).collect::<Vec<()>>().await;
    assert!(client.list(Default::default()).await.unwrap().is_empty());
}

async fn expired_while_the_server_was_down_is_reaped(node: &Node) {
    let short = node.sandbox_with(SandboxSpec { ttl_ms: 4000, ..node.spec() }).await;
    let soon = node.sandbox_with(SandboxSpec { ttl_ms: 60_000, ..node.spec() }).await;
    short.exec(["sleep", "3168"]).detach().await.unwrap();
    host::find("3168").unwrap();
    node.kill9().unwrap();
    tokio::time::sleep(S(5)).await;
    assert_eq!(host::with_argument("3168").len(), 1, "nobody is there to end it");
    node.up().unwrap();
    let client = node.client();
    gone(&client, &short).await;
    assert!(host::with_argument("3168").is_empty());
    // A deadline is still enforced after the restart.
    let soon = again(&client, &soon).await;
    soon.set_ttl(S(1)).await.unwrap();
    gone(&client, &soon).await;
}

async fn gone(client: &Client, sandbox: &Sandbox) {
    for _ in 0..300 {
        match client.get(sandbox.id().as_str()).await {
            Err(e) if e.code == Code::NotFound => return,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("{} is still there", sandbox.id());
}

async fn three_kills_in_a_row_lose_no_output(node: &Node) {
    let sandbox = node.sandbox().await;
    let fast = "import sys\nfor i in range(300000): sys.stdout.write(f'{i}\\n')";
    let fast = sandbox.exec(["python3", "-c", fast]).detach().await.unwrap();
    let slow = sandbox.sh(counter(100)).detach().await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        node.restart_kill9().unwrap();
    }
    let sandbox = again(&node.client(), &sandbox).await;
    assert_eq!(whole(&sandbox, &slow).await, (sequence(100), 9));
    let (text, code) = whole(&sandbox, &fast).await;
    assert_eq!(code, 0);
    assert!(text == sequence(299_999), "{} bytes of {}", text.len(), sequence(299_999).len());
    sandbox.stop().await.unwrap();
}

async fn forge_killed(node: &Node) {
    let old = node.sandbox().await;
    let exec = old.sh(counter(20)).detach().await.unwrap();
    let forge = host::forge_of(&node.data()).unwrap();
    host::kill9(forge).unwrap();
    assert_eq!(old.exec(["echo", "on"]).output().await.unwrap().stdout_text(), "on\n");
    let new = node.sandbox().await;
    assert_ne!(host::forge_of(&node.data()).unwrap(), forge);
    assert_eq!(new.exec(["echo", "new"]).output().await.unwrap().stdout_text(), "new\n");
    assert_eq!(whole(&old, &exec).await, (sequence(20), 9));
    old.stop().await.unwrap();
    new.stop().await.unwrap();
}

/// Becomes broken, says so, and stops.
async fn broken(node: &Node, sandbox: &Sandbox, word: &str) {
    let mut state = State::Running;
    for _ in 0..300 {
        state = sandbox.info().await.unwrap().state;
        if state == State::Broken {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(state, State::Broken);
    assert!(sandbox.info().await.unwrap().reason.is_some());
    let e = sandbox.exec(["true"]).output().await.unwrap_err();
    assert_eq!(e.code, Code::SandboxBroken, "{e}");
    let e = sandbox.files().read("/etc/passwd").await.unwrap_err();
    assert_eq!(e.code, Code::SandboxBroken, "{e}");
    sandbox.stop().await.unwrap();
    assert!(host::with_argument(word).is_empty());
    assert_eq!(node.client().get(sandbox.id().as_str()).await.unwrap_err().code, Code::NotFound);
}

async fn agent_killed_is_broken_and_stops(node: &Node) {
    let sandbox = node.sandbox().await;
    sandbox.exec(["sleep", "3171"]).detach().await.unwrap();
    let slot = host::find("3171").unwrap().slot;
    host::kill9(host::agent_of(slot).unwrap()).unwrap();
    broken(node, &sandbox, "3171").await;
}

async fn init_killed_is_broken_and_stops(node: &Node) {
    let sandbox = node.sandbox().await;
    sandbox.exec(["sleep", "3172"]).detach().await.unwrap();
    let seen = host::find("3172").unwrap();
    let inside = std::fs::read_link(format!("/proc/{}/ns/pid", seen.pid)).unwrap();
    let init = std::fs::read_dir("/proc").unwrap().flatten().find_map(|e| {
        let pid: u32 = e.file_name().to_str()?.parse().ok()?;
        let same = std::fs::read_link(e.path().join("ns/pid")).ok()? == inside;
        let status = std::fs::read_to_string(e.path().join("status")).ok()?;
        let first = status.lines().any(|l| l.starts_with("NSpid:") && l.ends_with("\t1"));
        (same && first).then_some(pid)
    });
    host::kill9(init.expect("a pid 1 in its namespace")).unwrap();
    broken(node, &sandbox, "3172").await;
}

async fn server_and_forge_killed_together(node: &Node) {
    let sandbox = node.sandbox().await;
    let exec = sandbox.sh(counter(40)).detach().await.unwrap();
    node.kill9().unwrap();
    host::kill9(host::forge_of(&node.data()).unwrap()).unwrap();
    node.up().unwrap();
    let sandbox = again(&node.client(), &sandbox).await;
    assert_eq!(whole(&sandbox, &exec).await, (sequence(40), 9));
    let new = node.sandbox().await;
    assert!(new.exec(["true"]).output().await.unwrap().success());
    new.stop().await.unwrap();
    sandbox.stop().await.unwrap();
}
