//! `cargo xtask ci`: everything that must hold before a change lands. What `.ci/run` calls, on a fresh machine or not.
//!
//! Steps run in order and the first failure ends the run. The last line but the total time is, alone on its line,
//! `N passed, N failed, N skipped`: tests of every kind together; a step that fails without tests counts as one
//! failed. A test that cannot run here prints `skipped: <what is missing>` on a line of its own and returns.

mod count;

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{arch, debian, deny, e2b, fuzz, image, lab, leak, python, step, stock::Binaries, swerex, tidy};
use count::Count;

/// One step's tests; more means that something hangs.
const TESTS_SECONDS_MAX: &str = "2400";

/// What the later steps get from the earlier ones.
#[derive(Default)]
struct State {
    count: Count,
    aether: PathBuf,
    rootfs: PathBuf,
}

type Step = (&'static str, fn(&mut State) -> Result<()>);

const STEPS: &[Step] = &[
    ("debian packages", |_| debian::ensure(debian::CI)),
    ("fmt", |_| step::run(&mut step::cargo(["fmt", "--all", "--check"]))),
    ("tidy", |_| tidy::run()),
    ("arch", |_| arch::run()),
    ("deny", |_| deny::run()),
    ("build static aether", |state| step::build_aether().map(|path| state.aether = path)),
    ("build", |_| step::run(&mut step::cargo(["build", "--workspace", "--profile", "fast"]))),
    ("clippy", |_| {
        let args = ["clippy", "--workspace", "--all-targets", "--profile", "fast", "--", "-D", "warnings"];
        step::run(&mut step::cargo(args))
    }),
    ("docs", |_| {
        let mut doc = step::cargo(["doc", "--workspace", "--no-deps", "--profile", "fast"]);
        step::run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
    }),
    ("test image", |state| image::ensure(&image::TEST).map(|path| state.rootfs = path)),
    ("real images", |_| image::REAL.iter().try_for_each(|recipe| image::ensure(recipe).map(drop))),
    ("tests", tests),
    ("doc tests", doc_tests),
    ("python", python_tests),
    ("e2b", stock_e2b),
    ("swerex", stock_swerex),
    ("lab", lab_tests),
    ("fuzz", |state| fuzz::ci().map(|targets| state.count.passed += targets)),
];

pub fn run() -> Result<()> {
    let start = Instant::now();
    let mut state = State::default();
    let mut times = Vec::new();
    let mut broken = None;
    for (name, work) in STEPS {
        let began = Instant::now();
        let failed_before = state.count.failed;
        let done = step::timed(name, || work(&mut state));
        times.push((*name, began.elapsed().as_secs_f64()));
        if let Err(error) = done {
            if state.count.failed == failed_before {
                state.count.failed += 1;
            }
            broken = Some((*name, error));
            break;
        }
    }
    println!();
    for (name, seconds) in &times {
        println!("{seconds:8.1} s  {name}");
    }
    println!("{:8.1} s  in all", start.elapsed().as_secs_f64());
    for feature in &state.count.features {
        println!("skipped here: {feature}");
    }
    for name in &state.count.failures {
        println!("failed: {name}");
    }
    if let Some((name, error)) = &broken {
        println!("ci: step `{name}` failed: {error:#}");
    }
    println!("{}", state.count);
    match broken {
        Some((name, _)) => {
            bail!("step `{name}` failed")
        }
        None => Ok(()),
    }
}

/// Unit and integration tests; then nothing may be left of them.
fn tests(state: &mut State) -> Result<()> {
    let before = leak::Snapshot::take();
    // Not nextest: it runs each test in a process of its own, and the host tests share one node.
    let args = ["test", "--workspace", "--profile", "fast", "--no-fail-fast", "--lib", "--bins", "--tests"];
    run_tests(state, &args, &["--show-output"])?;
    leak::assert_none_since(&before).context("the tests have passed, but they are not clean")
}

fn doc_tests(state: &mut State) -> Result<()> {
    run_tests(state, &["test", "--workspace", "--profile", "fast", "--doc", "--no-fail-fast"], &[])
}

/// The wheel, installed, against its own server; then nothing may be left of it.
fn python_tests(state: &mut State) -> Result<()> {
    let before = leak::Snapshot::take();
    let mut count = Count::default();
    let dsec = step::built_dsec()?;
    let done = python::test(&dsec, &state.aether, &state.rootfs, &[], |line| count.read(line));
    count.settle();
    let ran = count.passed > 0;
    state.count.add(&count);
    done?;
    if !ran {
        bail!("no Python test ran: the output of pytest was not understood");
    }
    leak::assert_none_since(&before).context("the Python tests have passed, but they are not clean")
}

/// The stock package of E2B, in several versions, against a node.
fn stock_e2b(state: &mut State) -> Result<()> {
    let node = Binaries { dsec: step::built_dsec()?, aether: state.aether.clone() };
    let mut count = Count::default();
    let done = e2b::drive(&node, &state.rootfs, e2b::VERSIONS, &[], |line| count.read(line));
    count.settle();
    state.count.add(&count);
    done
}

/// The stock package of SWE-ReX, in several versions, against a node; its own tests as well.
fn stock_swerex(state: &mut State) -> Result<()> {
    let node = Binaries { dsec: step::built_dsec()?, aether: state.aether.clone() };
    let mut count = Count::default();
    let done = swerex::drive(&node, &state.rootfs, swerex::VERSIONS, &[], |line| count.read(line));
    count.settle();
    state.count.add(&count);
    done
}

/// Host tests on the other kernel and the other layout of cgroups that a node may have.
fn lab_tests(state: &mut State) -> Result<()> {
    let mut count = Count::default();
    let done = lab::test(&state.aether, &state.rootfs, |line| count.read(line));
    count.settle();
    state.count.add(&count);
    done
}

fn run_tests(state: &mut State, args: &[&str], harness: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = step::command("timeout");
    command.args(["--kill-after=10", TESTS_SECONDS_MAX]).arg(cargo).args(args);
    if args[0] == "test" && !harness.is_empty() {
        command.arg("--").args(harness);
    }
    command.env("DSEC_TEST_ROOTFS", &state.rootfs).env("DSEC_AETHER", &state.aether);
    command.env("DSEC_BINARY", step::built_dsec()?);
    command.env("CARGO_TERM_COLOR", "never").env("RUST_BACKTRACE", "1");
    let mut count = Count::default();
    let status = step::tee(command, |line| count.read(line))?;
    count.settle();
    let (failed, nothing) = (count.failed, count.passed == 0 && count.failed == 0);
    state.count.add(&count);
    if status.code() == Some(124) || status.code() == Some(137) {
        bail!("the tests ran for over {TESTS_SECONDS_MAX} s and were ended");
    }
    if !status.success() {
        bail!("{failed} tests failed ({status})");
    }
    if nothing && !harness.is_empty() {
        bail!("no test ran: the output of the test runner was not understood");
    }
    Ok(())
}
