//! The project's own tests inside sandboxes: everywhere at once, broken in one, mended again.

use std::{collections::BTreeSet, fs, thread, time::Instant};

use anyhow::{Context, Result, bail};

use super::{PROJECT_DIR, TOOLKIT_DIR, node::Node};
use crate::step;

/// A function that many of the project's tests lean on, and what it becomes.
const FILE: &str = "toolz/itertoolz.py";
const RIGHT: &str = "return next(iter(seq))";
const WRONG: &str = "return (next(iter(seq)), None)";

/// pytest's verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    code: i32,
    passed: u64,
    failed: u64,
}

/// Runs the suite in one sandbox.
fn run(node: &Node, sandbox: &str) -> Result<Verdict> {
    let pytest = format!("{TOOLKIT_DIR}/bin/pytest");
    let mut command = node.cli(["exec", "--timeout", "5m", sandbox, "--", &pytest, "-q", "toolz"]);
    let out = command.output().context("cannot start dsec exec")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let code = out.status.code().unwrap_or(-1);
    let Some((passed, failed)) = parse_summary(&text) else {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("no summary of pytest in {sandbox} (exit {code}):\n{}\n{}", text.trim(), said.trim());
    };
    Ok(Verdict { code, passed, failed })
}

/// In all sandboxes at once; all must pass and agree. Gives the common verdict.
pub fn everywhere(node: &Node, boxes: &[String]) -> Result<Verdict> {
    let timed = |sandbox: &String| {
        let start = Instant::now();
        run(node, sandbox).map(|verdict| (verdict, start.elapsed().as_secs_f64()))
    };
    let runs: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = boxes.iter().map(|b| scope.spawn(move || timed(b))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| bail!("a thread of the demo panicked")))
            .collect()
    });
    let runs = runs?;
    for (sandbox, (verdict, seconds)) in boxes.iter().zip(&runs) {
        println!("{sandbox}  {} passed, {} failed  {seconds:.1} s", verdict.passed, verdict.failed);
    }
    let verdict = &runs[0].0;
    if verdict.code != 0
        || verdict.failed != 0
        || verdict.passed == 0
        || runs.iter().any(|(v, _)| v != verdict)
    {
        bail!("every sandbox should pass all tests, and the same number of them");
    }
    Ok(verdict.clone())
}

/// Copies the file out of the first sandbox, breaks it, copies it back: the tests fail there and only there.
pub fn broken(node: &Node, boxes: &[String], whole: &Verdict) -> Result<()> {
    edit(node, &boxes[0], RIGHT, WRONG)?;
    let verdict = run(node, &boxes[0])?;
    println!("{}  {} passed, {} failed", boxes[0], verdict.passed, verdict.failed);
    if verdict.code != 1 || verdict.failed == 0 {
        bail!("the broken file should fail tests with exit code 1; got {verdict:?}");
    }
    let neighbour = run(node, &boxes[1])?;
    println!("{}  {} passed, {} failed", boxes[1], neighbour.passed, neighbour.failed);
    if neighbour != *whole {
        bail!("a neighbour noticed: {neighbour:?}");
    }
    Ok(())
}

pub fn mended(node: &Node, sandbox: &str, whole: &Verdict) -> Result<()> {
    edit(node, sandbox, WRONG, RIGHT)?;
    let verdict = run(node, sandbox)?;
    println!("{sandbox}  {} passed, {} failed", verdict.passed, verdict.failed);
    if verdict != *whole {
        bail!("the mended file should pass as before; got {verdict:?}");
    }
    Ok(())
}

fn edit(node: &Node, sandbox: &str, from: &str, to: &str) -> Result<()> {
    let inside = format!("{sandbox}:{PROJECT_DIR}/{FILE}");
    let copy = node.scratch.join("edited.py");
    let _ = fs::remove_file(&copy);
    step::run(node.cli(["cp", &inside]).arg(&copy))?;
    let text = fs::read_to_string(&copy)?;
    if !text.contains(from) {
        bail!("{FILE} holds no {from:?}");
    }
    fs::write(&copy, text.replacen(from, to, 1))?;
    step::run(node.cli(["cp"]).arg(&copy).arg(&inside))
}

/// `190 passed, 1 skipped in 1.17s`: passed, and failed with errors.
fn parse_summary(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().rev().find(|l| {
        l.contains(" in ") && (l.contains(" passed") || l.contains(" failed") || l.contains(" error"))
    })?;
    let line = line.trim_matches(['=', ' ']).split(" in ").next()?;
    let mut counts = (0, 0);
    let mut kinds = BTreeSet::new();
    for part in line.split(", ") {
        let (number, kind) = part.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        kinds.insert(kind);
        match kind {
            "passed" => counts.0 += number,
            "failed" | "error" | "errors" => counts.1 += number,
            _ => {}
        }
    }
    (!kinds.is_empty()).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_pytest_is_read() {
        assert_eq!(parse_summary("....\n192 passed, 1 skipped in 1.17s\n"), Some((192, 0)));
        assert_eq!(parse_summary("x\n== 3 failed, 10 passed, 2 errors in 0.50s ==\n"), Some((10, 5)));
        assert_eq!(parse_summary("no tests ran in 0.01s\n"), None);
        assert_eq!(parse_summary(""), None);
    }
}
