//! The crate graph: which of our crates may depend on which, and a golden picture of which does.
//!
//! `EDGES` says what may be; `docs/arch.golden` says what is, so that a new arrow shows in review. Test-only edges
//! (dev-dependencies) are shown, and free but for one rule: nothing that ships depends on `testkit`.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;

/// Each crate and what it may depend on. Down the picture of ARCHITECTURE.md only; a service never on another
/// service. `dsec` wires the services together, `testkit` builds nodes for tests: both see everything below them.
const EDGES: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("linux", &["api"]),
    ("rpc", &["api"]),
    ("iam", &["api"]),
    ("image", &["api", "linux"]),
    ("storage", &["api"]),
    ("layerd", &["linux", "storage"]),
    ("runtime", &["api", "linux", "rpc"]),
    ("aether", &["api", "linux", "rpc"]),
    ("edge", &["api", "linux", "rpc", "runtime", "image"]),
    ("e2b", &["api", "rpc"]),
    ("swerex", &["api", "rpc"]),
    ("apiserver", &["api", "rpc", "iam", "e2b", "swerex"]),
    ("libdsec", &["api", "rpc"]),
    ("mcp", &["libdsec"]),
    (
        "dsec",
        &[
            "api",
            "linux",
            "rpc",
            "iam",
            "image",
            "layerd",
            "storage",
            "runtime",
            "edge",
            "e2b",
            "apiserver",
            "libdsec",
            "mcp",
        ],
    ),
    (
        "testkit",
        &["api", "linux", "rpc", "iam", "image", "runtime", "aether", "edge", "apiserver", "libdsec"],
    ),
    ("python", &["libdsec"]),
    ("bench", &["api", "linux", "libdsec", "testkit"]),
    ("xtask", &[]),
];

const GOLDEN: &str = "docs/arch.golden";

/// The edges of one crate, by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Out {
    ships: Vec<String>,
    tests: Vec<String>,
}

type Graph = BTreeMap<String, Out>;

/// `cargo xtask arch`.
pub fn run() -> Result<()> {
    let graph = graph()?;
    let picture = picture(&graph);
    print!("{picture}");
    let findings = forbidden(&graph);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("arch: {} forbidden edges", findings.len());
    }
    let path = step::root().join(GOLDEN);
    if std::env::var_os("BLESS").is_some_and(|v| v == "1") {
        fs::write(&path, picture).with_context(|| format!("cannot write {GOLDEN}"))?;
        println!("arch: wrote {GOLDEN}");
        return Ok(());
    }
    let golden =
        fs::read_to_string(&path).with_context(|| format!("cannot read {GOLDEN}; BLESS=1 writes it"))?;
    if golden != picture {
        bail!(
            "the crate graph differs from {GOLDEN}; where that is meant, `BLESS=1 cargo xtask arch` rewrites it\n{}",
            difference(&golden, &picture)
        );
    }
    Ok(())
}

/// Findings for `tidy`: edges that may not be.
pub fn check_edges() -> Result<Vec<String>> {
    Ok(forbidden(&graph()?))
}

fn graph() -> Result<Graph> {
    let mut metadata = step::cargo(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let json: Value = serde_json::from_str(&step::output(&mut metadata)?).context("cargo metadata")?;
    Ok(parse(&json))
}

fn parse(metadata: &Value) -> Graph {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |p: &Value| p["name"].as_str().unwrap_or_default().to_owned();
    let mut graph: Graph = packages.iter().map(|p| (name(p), Out::default())).collect();
    let ours: Vec<String> = graph.keys().cloned().collect();
    for package in packages {
        let out = graph.entry(name(package)).or_default();
        for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let to = name(dependency);
            // A path makes it ours: a crate of the registry may have the same name.
            if !ours.contains(&to) || dependency["path"].is_null() {
                continue;
            }
            let edges =
                if dependency["kind"].as_str() == Some("dev") { &mut out.tests } else { &mut out.ships };
            edges.push(to);
            edges.sort();
            edges.dedup();
        }
    }
    graph
}

fn picture(graph: &Graph) -> String {
    let mut text = String::from(
        "# Which crate depends on which; (tests) only its tests do. `BLESS=1 cargo xtask arch` rewrites this.\n",
    );
    for (name, out) in graph {
        let ships = if out.ships.is_empty() { String::new() } else { format!(" {}", out.ships.join(" ")) };
        let tests: Vec<&str> =
            out.tests.iter().filter(|t| !out.ships.contains(t)).map(String::as_str).collect();
        let tests = if tests.is_empty() { String::new() } else { format!(" (tests) {}", tests.join(" ")) };
        text += &format!("{name} ->{ships}{tests}\n");
    }
    text
}

fn forbidden(graph: &Graph) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, out) in graph {
        let Some((_, allowed)) = EDGES.iter().find(|(n, _)| n == name) else {
            findings.push(format!(
                "crates/{name}/Cargo.toml:1: a crate that xtask/src/arch.rs does not know: add it to EDGES"
            ));
            continue;
        };
        for to in out.ships.iter().filter(|to| !allowed.contains(&to.as_str())) {
            findings.push(format!(
                "crates/{name}/Cargo.toml:1: `{name}` may not depend on `{to}` (xtask/src/arch.rs)"
            ));
        }
    }
    findings
}

fn difference(golden: &str, now: &str) -> String {
    let gone = golden.lines().filter(|l| !now.lines().any(|n| n == *l)).map(|l| format!("- {l}"));
    let new = now.lines().filter(|l| !golden.lines().any(|g| g == *l)).map(|l| format!("+ {l}"));
    gone.chain(new).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn example() -> Graph {
        parse(&json!({"packages": [
            {"name": "edge", "dependencies": [
                {"name": "api", "path": "/x", "kind": null}, {"name": "serde", "kind": null},
                {"name": "apiserver", "path": "/x", "kind": null}, {"name": "testkit", "path": "/x", "kind": "dev"}]},
            {"name": "api", "dependencies": []}, {"name": "apiserver", "dependencies": []},
            {"name": "testkit", "dependencies": []}, {"name": "stranger", "dependencies": []},
        ]}))
    }

    #[test]
    fn the_picture_shows_both_kinds_of_edge() {
        assert!(picture(&example()).contains("edge -> api apiserver (tests) testkit\n"));
        assert!(picture(&example()).contains("api ->\n"));
    }

    #[test]
    fn a_service_may_not_know_another() {
        let findings = forbidden(&example());
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("`edge` may not depend on `apiserver`"));
        assert!(findings[1].contains("stranger"));
    }

    #[test]
    fn what_may_be_has_no_circle() {
        // Each crate stands after all that it may depend on, but for the services' own order.
        for (name, allowed) in EDGES {
            for to in *allowed {
                let back = EDGES.iter().find(|(n, _)| n == to).map(|(_, a)| *a).unwrap();
                assert!(!back.contains(name), "{name} <-> {to}");
            }
        }
    }

    #[test]
    fn a_difference_names_both_sides() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), "- b\n+ c");
    }
}
