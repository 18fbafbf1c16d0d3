//! Path tests: the spans that create, exec and stop leave in a real node's log, against `road.golden`, so that the road
//! which the documents draw cannot drift. `BLESS=1` writes the file anew.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, path::Path};

use testkit::Node;

const LOG: &str = "warn,rpc=debug,apiserver=debug,edge=debug,runtime=debug";

/// One span that ended, from a line `<time> <level> a{field=1}:b:c: <target>: close time.busy=...`: the names from the root
/// of its request to itself.
fn road(line: &str) -> Option<String> {
    let (what, _) = line.split_once(": close time.busy=")?;
    let mut depth = 0;
    let bare: String = what
        .chars()
        .filter(|c| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0 && *c != '}'
        })
        .collect();
    let (spans, _target) = bare.split_once(": ")?;
    Some(spans.rsplit(' ').next()?.split(':').collect::<Vec<_>>().join(" > "))
}

/// Every road of the log whose root is one of `roots`.
fn roads(log: &Path, roots: &[&str]) -> BTreeSet<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let all = text.lines().filter_map(road);
    all.filter(|road| roots.iter().any(|root| road.split(" > ").next() == Some(*root))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn create_exec_and_stop_go_the_documented_road() {
    let node = Node::start_with(&["--log", LOG, "--log-spans"]).await.unwrap();
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["echo", "hi"]).output().await.unwrap();
    assert_eq!(out.stdout_text(), "hi\n");
    sandbox.stop().await.unwrap();
    let log = node.data().join("dsec.log");
    // A span ends with its last task, a moment after the answer.
    let roots = ["rpc.create", "rpc.exec", "rpc.stop", "edge.stop"];
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let now = roads(&log, &roots);
        if !now.is_empty() && now == seen && now.contains("edge.stop") {
            break;
        }
        seen = now;
    }
    node.stop().unwrap();
    let seen = seen.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/road.golden");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &seen).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(seen, expected, "the road has changed: see it, then BLESS=1");
}
