//! Section F of the black-box cases: create, names, stop, TTL. A test has the number of its case.
#![allow(clippy::unwrap_used)]

use std::{process::ExitCode, time::Duration};

use futures_util::{StreamExt, stream};
use libdsec::{Class, Code, ListQuery, Network, SandboxSpec};
use testkit::{Node, host, tests};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    // One at a time: they count what is left of the node's slots.
    testkit::suite::run(
        1,
        tests![
            case_61_a_hundred_creates_at_once_twice,
            case_61_a_batch_of_a_hundred,
            case_62_the_same_name_twice_at_once,
            case_62_the_same_key_is_the_same_sandbox,
            case_63_a_failed_create_leaks_nothing,
            case_65_stop_is_real,
            case_65_stop_while_creating,
            case_66_busy_is_not_idle_and_the_ttl_is_hard,
            list_filters_and_get_by_name,
        ],
    )
}

/// Slots in use settle to the pool's own: what every test of this file ends with.
async fn settled(node: &Node, pool_max: usize) {
    assert!(node.client().list(ListQuery::default()).await.unwrap().is_empty());
    let mut slots = Default::default();
    for _ in 0..200 {
        slots = node.slots();
        if slots.len() <= pool_max {
            let uppers = std::fs::read_dir(node.data().join("volume/uppers")).unwrap().count();
            assert_eq!(uppers, 0, "uppers are left");
            let ledger = std::fs::read_dir(node.data().join("run/ledger")).unwrap();
            let entries =
                ledger.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("sb-")).count();
            assert_eq!(entries, 0, "ledger entries are left");
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{} slots, the pool has {pool_max}: {slots:?}", slots.len());
}

/// The pool may be refilling beyond its size for a moment; more is a leak.
const POOL: usize = 10;

async fn case_61_a_hundred_creates_at_once_twice(node: &Node) {
    for _ in 0..2 {
        let all = stream::iter(0..100).map(|_| async { node.client().create(node.spec()).await });
        let done = all.buffer_unordered(100).collect::<Vec<_>>().await;
        let mut made = Vec::new();
        for result in done {
            match result {
                Ok(sandbox) => made.push(sandbox),
                Err(e) => assert!(e.code.class() == Class::Busy && e.retry_after_ms.is_some(), "{e}"),
            }
        }
        assert!(made.len() >= 50, "{} of 100", made.len());
        stream::iter(&made)
            .for_each_concurrent(16, |sandbox| async move {
                assert!(sandbox.exec(["true"]).output().await.unwrap().success());
                sandbox.stop().await.unwrap();
            })
            .await;
        settled(node, POOL).await;
    }
}

async fn case_61_a_batch_of_a_hundred(node: &Node) {
    let mut batch = node.client().create_many(100, node.spec());
    let mut made = Vec::new();
    while let Some(sandbox) = batch.next().await {
        made.push(sandbox.unwrap());
    }
    assert_eq!(made.len(), 100);
    let ids: std::collections::BTreeSet<_> = made.iter().map(|s| s.id().clone()).collect();
    assert_eq!(ids.len(), 100);
    stream::iter(&made).for_each_concurrent(16, |s| async move { s.stop().await.unwrap() }).await;
    settled(node, POOL).await;
}

async fn case_62_the_same_name_twice_at_once(node: &Node) {
    for round in 0..5 {
        let spec = || SandboxSpec { name: Some(format!("twin{round}")), ..node.spec() };
        let client = node.client();
        let (a, b) = tokio::join!(client.create(spec()), client.create(spec()));
        let (winner, loser) = match (a, b) {
            (Ok(sandbox), Err(e)) | (Err(e), Ok(sandbox)) => (sandbox, e),
            other => panic!("exactly one wins: {other:?}"),
        };
        assert_eq!(loser.code, Code::AlreadyExists);
        assert!(
            winner.exec(["true"]).output().await.unwrap().success(),
            "the loser's undo spares the winner"
        );
        winner.stop().await.unwrap();
        // The name is free again.
        client.create(spec()).await.unwrap().stop().await.unwrap();
    }
    settled(node, POOL).await;
}

async fn case_62_the_same_key_is_the_same_sandbox(node: &Node) {
    let sandbox = node.sandbox().await;
    let marker = "echo x >> /tmp/once; wc -l < /tmp/once";
    for _ in 0..3 {
        let out = sandbox.sh(marker).idempotency_key("one").output().await.unwrap();
        assert_eq!(out.stdout_text(), "1\n", "nothing runs twice");
    }
    sandbox.stop().await.unwrap();
    settled(node, POOL).await;
}

async fn case_63_a_failed_create_leaks_nothing(node: &Node) {
    let good = node.spec();
    let bad = [
        (SandboxSpec::new("nosuch"), Code::NotFound),
        (SandboxSpec { workspaces: vec!["nosuch".into()], ..good.clone() }, Code::NotFound),
        (SandboxSpec { memory_bytes_max: 1 << 49, ..good.clone() }, Code::NoCapacity),
        (SandboxSpec { kind: libdsec::Kind::FullVm, ..good.clone() }, Code::Unsupported),
        (SandboxSpec { ttl_ms: 0, ..good.clone() }, Code::InvalidArgument),
    ];
    for (spec, code) in bad {
        let shown = format!("{spec:?}");
        let e = node.client().create(spec).await.expect_err(&shown);
        // What the node can never give may be refused as well as called busy.
        let either = e.code == code || code == Code::NoCapacity && e.code.class() != Class::Broken;
        assert!(either, "{shown}: {e}");
    }
    settled(node, POOL).await;
}

async fn case_65_stop_is_real(node: &Node) {
    let sandbox = node.sandbox().await;
    sandbox.exec(["sleep", "3165"]).detach().await.unwrap();
    host::find("3165").unwrap();
    sandbox.stop().await.unwrap();
    assert!(host::with_argument("3165").is_empty(), "answered, and still there");
    assert!(node.client().list(ListQuery::default()).await.unwrap().is_empty());
    assert_eq!(sandbox.stop().await.unwrap_err().code, Code::NotFound);
    for call in [sandbox.info().await.err(), sandbox.exec(["true"]).output().await.err()] {
        let e = call.expect("it is gone");
        assert!(matches!(e.code, Code::NotFound | Code::SandboxGone), "{e}");
    }
    settled(node, POOL).await;
}

async fn case_65_stop_while_creating(node: &Node) {
    let creates = {
        let client = node.client();
        let spec = node.spec();
        tokio::spawn(async move {
            let mut batch = client.create_many(40, spec);
            let mut ended = 0;
            while batch.next().await.is_some() {
                ended += 1;
            }
            ended
        })
    };
    let client = node.client();
    while !creates.is_finished() {
        for info in client.list(ListQuery::default()).await.unwrap() {
            match client.sandbox(info).stop().await {
                Ok(()) => {}
                Err(e) => assert_eq!(e.code, Code::NotFound, "{e}"),
            }
        }
    }
    assert_eq!(creates.await.unwrap(), 40, "each is answered, made or failed");
    for info in client.list(ListQuery::default()).await.unwrap() {
        client.sandbox(info).stop().await.unwrap();
    }
    settled(node, POOL).await;
}

async fn case_66_busy_is_not_idle_and_the_ttl_is_hard(node: &Node) {
    // There is one clock, the hard TTL: silence does not end a sandbox, and work does not lengthen its life.
    let sandbox = node.sandbox_with(SandboxSpec { ttl_ms: 6000, ..node.spec() }).await;
    let silent = sandbox.exec(["sleep", "3"]).output().await.unwrap();
    assert!(silent.success());
    sandbox.exec(["sleep", "3166"]).detach().await.unwrap();
    let mut gone = false;
    for _ in 0..600 {
        gone = node.client().get(sandbox.id().as_str()).await.is_err_and(|e| e.code == Code::NotFound);
        if gone {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(gone, "the TTL did not end it");
    assert!(host::with_argument("3166").is_empty());
    settled(node, POOL).await;
}

async fn list_filters_and_get_by_name(node: &Node) {
    let spec = |name: &str, job: &str| SandboxSpec {
        name: Some(name.into()),
        labels: [("job".into(), job.into())].into(),
        network: Network::None,
        ..node.spec()
    };
    let a = node.sandbox_with(spec("a", "x")).await;
    let b = node.sandbox_with(spec("b", "y")).await;
    let client = node.client();
    let listed = client.list(ListQuery { name: None, label: Some("job=x".into()) }).await.unwrap();
    assert_eq!(listed.iter().map(|s| &s.id).collect::<Vec<_>>(), [a.id()]);
    assert_eq!(client.get("b").await.unwrap().id(), b.id());
    assert_eq!(client.get("c").await.unwrap_err().code, Code::NotFound);
    tokio::time::timeout(S(60), a.stop()).await.unwrap().unwrap();
    b.stop().await.unwrap();
    settled(node, POOL).await;
}
