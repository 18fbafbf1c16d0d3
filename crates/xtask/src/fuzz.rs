//! `cargo xtask fuzz [target]`: the targets of `fuzz/`, coverage-guided by libFuzzer, for a bounded time.
//!
//! With the pinned stable compiler: the instrumentation is LLVM's, asked for by codegen options that need no nightly.
//! What a run found interesting is kept under `target/fuzz/corpus` and starts the next one. A finding ends the run and
//! names the file that holds the input.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};

use crate::step::{self, TRIPLE};

/// Every target, as `fuzz/Cargo.toml` names them.
const TARGETS: [&str; 5] = ["id", "spec", "frame", "tar", "erofs"];
/// LLVM's coverage for libFuzzer: edges, counters and comparisons. Frame pointers are for the traces of findings.
const FLAGS: &str = "-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares -C codegen-units=1 -C force-frame-pointers=yes --cfg fuzzing";
/// One input.
const INPUT_SECONDS_MAX: u32 = 10;
const INPUT_BYTES_MAX: u32 = 16 << 10;
const MEMORY_MIB_MAX: u32 = 1024;

#[derive(clap::Args)]
pub struct Args {
    /// One of id, spec, frame, tar, erofs; all where none is named
    target: Option<String>,
    /// For each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let targets: Vec<&str> = match &args.target {
        None => TARGETS.to_vec(),
        Some(named) => match TARGETS.iter().find(|t| **t == named.as_str()) {
            Some(target) => vec![target],
            None => bail!("no target `{named}`: {}", TARGETS.join(", ")),
        },
    };
    all(&targets, Duration::from_secs(args.seconds)).map(drop)
}

/// Each target for `CI_SECONDS`; how many ran.
pub fn ci() -> Result<u64> {
    const CI_SECONDS: u64 = 8;
    all(&TARGETS, Duration::from_secs(CI_SECONDS))
}

fn all(targets: &[&str], each: Duration) -> Result<u64> {
    let mut build = step::cargo(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.args(["--target", TRIPLE, "--target-dir", "target/fuzz"]).env("RUSTFLAGS", FLAGS);
    step::run(&mut build)?;
    for target in targets {
        fuzz(target, each).with_context(|| format!("fuzz target `{target}`"))?;
    }
    Ok(targets.len() as u64)
}

fn fuzz(target: &str, span: Duration) -> Result<()> {
    let home = step::root().join("target/fuzz");
    let (corpus, findings) = (home.join("corpus").join(target), home.join("findings"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&findings)?;
    let mut command = step::command(home.join(TRIPLE).join("release").join(target));
    command.arg(&corpus).arg(step::root().join("fuzz/seeds").join(target));
    command.arg(format!("-max_total_time={}", span.as_secs()));
    command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg(format!("-artifact_prefix={}/{target}-", findings.display()));
    command.args(["-print_final_stats=1", "-verbosity=0"]);
    step::run(&mut command)
}
