//! What the store keeps: traces, which bring a layer's data before it is asked for, and nothing that no image needs.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use libdsec::{Code, PackRequest, SandboxSpec};
use testkit::{Node, tree::TREE};

use crate::place::{fetched, ok, published};

/// What a program's start reads: many files, none of them whole.
const START: &str = "python3 -c 'import json, email.message, http.client, sqlite3, unittest; print(2)'";

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn files(dir: &Path) -> usize {
    let shards = fs::read_dir(dir).into_iter().flatten().flatten();
    shards.map(|shard| fs::read_dir(shard.path()).map_or(0, Iterator::count)).sum()
}

async fn prefetched(node: &Node) -> u64 {
    fetched(node).await;
    let layers = node.client().images().layers("debian").await.unwrap();
    layers.iter().map(|l| l.prefetched_bytes).sum()
}

pub async fn what_was_read_once_comes_before_it_is_asked_for() {
    let stored = published().await;
    let b = stored.place.node("trace_idle_ms = 300");
    let sandbox = b.sandbox().await;
    assert_eq!(ok(&sandbox, START).await, "2\n");
    let traces = stored.place.path().join("traces");
    until("no trace comes", || fs::read_dir(&traces).is_ok_and(|dir| dir.count() == 1)).await;
    let trace = fs::read_dir(&traces).unwrap().next().unwrap().unwrap().path();
    until("it is not whole", || fs::metadata(&trace).is_ok_and(|m| m.len() > 0)).await;
    b.stop().unwrap();
    let text = fs::read_to_string(&trace).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let count = json["chunks"].as_array().unwrap().len();
    assert!(count > 8, "{text}");

    let c = stored.place.node("read_within_ms = 1000");
    let sandbox = c.sandbox().await;
    let cache = c.data().join("cache");
    until("it is not fetched", || files(&cache) >= count).await;
    assert!(prefetched(&c).await > 1 << 20);
    stored.place.take_away();
    assert_eq!(ok(&sandbox, START).await, "2\n", "all of it was here");
    stored.place.bring_back();
    c.stop().unwrap();

    let d = stored.place.node("prefetch = false");
    assert_eq!(ok(&d.sandbox().await, START).await, "2\n");
    assert_eq!(prefetched(&d).await, 0);
    d.stop().unwrap();

    // Advice of whoever may write to the store: what is no trace is none.
    let hostile = text.replace("\"chunks\":[", "\"chunks\":[4000000000,");
    for bad in [hostile.as_str(), &text[..text.len() / 2], ""] {
        fs::write(&trace, bad).unwrap();
        let e = stored.place.node("");
        assert_eq!(ok(&e.sandbox().await, START).await, "2\n");
        assert_eq!(prefetched(&e).await, 0, "{bad}");
        e.stop().unwrap();
    }
}

fn dsec(node: &Node, args: &[&str]) -> (Option<i32>, String) {
    let out = node.cli().args(args).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8_lossy(&said).into_owned())
}

pub async fn what_no_image_needs_goes() {
    let stored = published().await;
    let b = stored.place.node("");
    let sandbox = b.sandbox().await;
    ok(&sandbox, "head -c 20000000 /dev/urandom > /opt/noise").await;
    sandbox.pack_diff(PackRequest::new("work")).await.unwrap();
    b.client().images().publish("work").await.unwrap();
    assert_eq!(dsec(&b, &["store", "ls", "-q"]).1, "debian:latest\nwork:latest\n");
    let before = stored.place.objects().len();
    assert_eq!(dsec(&b, &["store", "rm", "work"]), (Some(0), "work\n".into()));
    assert_eq!(dsec(&b, &["store", "rm", "work"]).0, Some(125));
    assert_eq!(dsec(&b, &["store", "ls", "-q"]).1, "debian:latest\n");
    let gc = |args: &[&str]| {
        let (code, said) = dsec(&b, &[&["store", "gc", "--json"], args].concat());
        assert_eq!(code, Some(0), "{said}");
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        let of = |key: &str| report[key].as_u64().unwrap();
        (of("layers_kept"), of("layers_removed"), of("objects_removed"))
    };
    let (code, said) = dsec(&b, &["store", "gc", "--older-than", "5m"]);
    assert!(code == Some(125) && said.contains("older_than_ms"), "{said}");
    assert_eq!(gc(&[]), (2, 0, 0), "it is young");
    let touch = ["-type", "f", "-exec", "touch", "-d", "2 days ago", "{}", "+"];
    assert!(Command::new("find").arg(stored.place.path()).args(touch).status().unwrap().success());
    // 20 MB are three objects, and the meta is one.
    assert_eq!(gc(&["--dry-run"]), (1, 1, 4));
    assert_eq!(stored.place.objects().len(), before);
    assert_eq!(gc(&["--older-than", "1d"]), (1, 1, 4));
    assert_eq!(stored.place.objects().len(), before - 4);
    let c = stored.place.node("");
    assert!(ok(&c.sandbox().await, TREE).await == stored.tree, "the trees differ");
    let gone = c.client().create(SandboxSpec::new("work")).await.map(|_| ()).unwrap_err();
    assert_eq!(gone.code, Code::NotFound, "{gone}");
    c.stop().unwrap();
    // Who has it may send it again.
    assert_eq!(b.client().images().publish("work").await.unwrap().objects_sent, 4);
    b.stop().unwrap();
}
