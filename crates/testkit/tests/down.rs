//! The ends of a node: in the middle of creates, after its server was killed, and starts that fail. Each leaves nothing.
#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use libdsec::SandboxSpec;
use testkit::Node;

/// `down` refuses creates before it stops what lives, so that none slips through between.
#[tokio::test(flavor = "multi_thread")]
async fn down_in_the_middle_of_creates_leaves_nothing() {
    let node = Node::start().await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let creators: Vec<_> = (0..4)
        .map(|_| {
            let (client, ended) = (node.client(), ended.clone());
            tokio::spawn(async move {
                let mut made = 0;
                while !ended.load(Ordering::Relaxed) {
                    match client.create(SandboxSpec::new("debian")).await {
                        Ok(_) => made += 1,
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
                made
            })
        })
        .collect();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    // Checks that nothing is left.
    let stopped = tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
    ended.store(true, Ordering::Relaxed);
    let mut made = 0;
    for creator in creators {
        made += creator.await.unwrap();
    }
    stopped.unwrap();
    assert!(made > 0, "there were creates to be in the middle of");
}

/// Nobody is there to be asked: another server takes over what the killed one left, and ends it.
#[tokio::test(flavor = "multi_thread")]
async fn down_after_the_server_was_killed_leaves_nothing() {
    let node = Node::start().await.unwrap();
    node.sandbox().await;
    node.sandbox().await;
    node.kill9().unwrap();
    node.stop().unwrap();
}

/// The address is taken before anything is built.
#[tokio::test(flavor = "multi_thread")]
async fn up_on_a_taken_address_leaves_nothing() {
    let node = Node::start().await.unwrap();
    let address = node.access().url.trim_start_matches("http://").to_owned();
    let other = node.scratch().join("other");
    let mut up = node.cli();
    up.env("DSEC_DATA", &other).env("DSEC_CONTEXT", node.scratch().join("other.toml"));
    let out = up.args(["up", "--detach", "--listen", &address]).output().unwrap();
    assert_eq!(out.status.code(), Some(125));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains(&address) && !said.contains("error: error:"), "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(other.to_str().unwrap()), "{mounts}");
    node.stop().unwrap();
}

/// Names that the kernel escapes in its list of mounts.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_with_a_space_is_one() {
    let node = Node::start_in("with space").await.unwrap();
    let sandbox = node.sandbox().await;
    node.restart_kill9().unwrap();
    let again = node.client().get(sandbox.id().as_str()).await.unwrap();
    assert_eq!(again.exec(["echo", "hi"]).output().await.unwrap().stdout_text(), "hi\n");
    node.stop().unwrap();
}
