//! A kill at every step that changes a file, and a loss of power there: what is on the disk then is whole, and the same
//! done again succeeds.
//!
//! Black box: the operation runs in a process of its own (this test binary again), and strace kills that at the N-th call
//! of a system call, for every call that it makes of those below. The call itself is not made: what is found is the state
//! before it.

mod operation;
mod power;
mod state;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{has, scratch};
use operation::{Operation, Stage};

/// Between two calls of these no file changes that anybody could see. (A file that is made is empty until its first write.)
const CHANGES: &[&str] = &[
    "write",
    "pwrite64",
    "writev",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "sendfile",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "rmdir",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "fchmod",
    "fchmodat",
    "chmod",
    "utimensat",
];
/// Those of them that make a file system write: between two of these a loss of power finds one and the same disk.
const SYNCS: &[&str] = &["fsync", "fdatasync", "sync", "syncfs"];
/// What the victim is told.
const ROLE: &str = "DSEC_IMAGE_CRASH";
const TEST: &str = "crash::victim";
const DONE: &str = "acknowledged";
/// The process that is killed; nothing where no role is given.
#[test]
fn victim() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(3, ' ');
    let mut word = || words.next().unwrap().to_owned();
    let (operation, registry, dir) = (word(), word(), word());
    let operation = Operation::named(&operation);
    operation.act(&Stage { dir: Path::new(&dir), registry: &registry }).unwrap();
    println!("{DONE}");
}

/// Whether the operation was acknowledged, and whether it was killed.
#[derive(Debug)]
struct Outcome {
    acknowledged: bool,
    killed: bool,
}

fn strace(operation: Operation, stage: &Stage<'_>, calls: &str) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--quiet=all", &format!("--trace={calls}")]);
    strace.env(ROLE, format!("{} {} {}", operation.name(), stage.registry, stage.dir.display()));
    strace
}

fn run(mut strace: Command) -> Outcome {
    strace.arg(std::env::current_exe().unwrap());
    let output = strace.args(["--exact", TEST, "--nocapture", "--test-threads=1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = said.contains("panicked") || said.contains("FAILED");
    assert!(!failed, "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    Outcome { acknowledged: said.contains(DONE), killed: !output.status.success() }
}

/// Where to kill.
#[derive(Debug, Clone)]
struct Step {
    call: &'static str,
    /// From 1, in the thread that comes to it first.
    number: u32,
}

/// Runs the operation to its end, and tells each of its steps.
fn steps(operation: Operation, stage: &Stage<'_>, calls: &[&'static str], log: &Path) -> Vec<Step> {
    let mut traced = strace(operation, stage, &calls.join(","));
    traced.arg("--output").arg(log);
    let outcome = run(traced);
    assert!(outcome.acknowledged && !outcome.killed, "{operation:?}");
    let mut made: BTreeMap<(String, &'static str), u32> = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let name = rest.trim_start().split('(').next().unwrap_or_default();
        if let Some(call) = calls.iter().find(|call| **call == name) {
            *made.entry((thread.to_owned(), call)).or_default() += 1;
        }
    }
    let count = |call: &str| made.iter().filter(|((_, of), _)| *of == call).map(|(_, count)| *count).max();
    let steps = calls
        .iter()
        .flat_map(|call| (1..=count(call).unwrap_or_default()).map(|number| Step { call, number }));
    steps.collect()
}

fn run_killed(operation: Operation, stage: &Stage<'_>, step: &Step) -> Outcome {
    let Step { call, number } = step;
    let mut killing = strace(operation, stage, call);
    killing.arg("--output=/dev/null").arg(format!("--inject={call}:signal=SIGKILL:when={number}"));
    run(killing)
}

/// Whether processes may be traced here; says so where not.
fn can_trace() -> bool {
    if !has("strace", "strace") {
        return false;
    }
    let traced = Command::new("strace").args(["--follow-forks", "-qq", "true"]).output();
    let can = traced.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: ptrace");
    }
    can
}

/// Kills `operation` at each of its steps; how many kills it took.
fn kill_everywhere(operation: Operation) -> usize {
    let home = scratch();
    let registry = operation::registry();
    let repository = registry.reference("");
    let template = home.path().join("template");
    operation.prepare(&template);
    let before = state::of(&template);
    let whole = copy_of(&template, "whole");
    let steps =
        steps(operation, &Stage { dir: &whole, registry: &repository }, CHANGES, &home.path().join("log"));
    let after = state::of(&whole);
    let mut kills = 0;
    for step in &steps {
        let dir = copy_of(&template, "killed");
        let stage = Stage { dir: &dir, registry: &repository };
        let outcome = run_killed(operation, &stage, step);
        kills += usize::from(outcome.killed);
        state::assert_settled(operation, &stage, &outcome, (&before, &after), step);
        fs::remove_dir_all(&dir).unwrap();
    }
    // Its two threads share the steps in another way each time.
    assert!(
        kills == steps.len() || operation == Operation::Pull,
        "{operation:?}: {kills} of {} steps",
        steps.len()
    );
    kills
}

/// Beside it.
fn copy_of(template: &Path, name: &str) -> PathBuf {
    let to = template.with_file_name(name);
    assert!(Command::new("cp").arg("-a").arg(template).arg(&to).status().unwrap().success());
    to
}

macro_rules! killed {
    ($($test:ident: $operation:ident, $at_least:literal;)*) => {$(
        #[test]
        fn $test() {
            if can_trace() {
                let steps = kill_everywhere(Operation::$operation);
                assert!(steps >= $at_least, "killed at {steps} steps only");
            }
        }
    )*};
}

killed! {
    a_kill_in_the_first_opening: Open, 5;
    a_kill_in_an_import_of_a_tar: ImportTar, 20;
    a_kill_in_an_import_of_a_directory: ImportDirectory, 20;
    a_kill_in_an_import_of_an_image: ImportImage, 40;
    a_kill_in_the_replacement_of_an_image: Replace, 20;
    a_kill_in_a_merge: Merge, 20;
    a_kill_in_a_pack: Pack, 20;
    a_kill_in_an_adoption: Adopt, 20;
    a_kill_in_a_removal: Remove, 10;
    a_kill_in_a_removal_of_two_names: RemoveByDigest, 10;
    a_kill_in_a_sweep: Sweep, 10;
    a_kill_in_a_pull: Pull, 30;
    a_kill_in_a_pull_that_goes_on: PullOn, 20;
}
