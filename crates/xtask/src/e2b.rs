//! `cargo xtask e2b`: the stock e2b package, as it comes from the package index, against a node of this build.
//!
//! Each version has a virtual environment of its own under `target/e2b`, kept for the next run. The tests are those of
//! `crates/e2b/tests/py`; environment variables alone lead the package to the node. Invariant: the package is not
//! touched, and nothing of the node is left. `--bench` measures instead.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    debian,
    demo::node::Node,
    image, step,
    stock::{self, Binaries},
};

/// What the face is promised to serve. The last is the newest when this was written.
pub const VERSIONS: &[&str] = &["2.21.1", "2.29.6", "2.45.1", "2.63.0"];
const PYTEST: &str = "pytest==9.0.1";
const SUITE: &str = "crates/e2b/tests/py";
const BENCH: &str = "crates/e2b/tests/py/bench.py";
/// So that a thousand sandboxes fit on a small machine, each with a whole core when it can have it.
const SMALL: &str = "[capacity]\ncpu_oversell_percent = 100000\n[e2b]\nmemory_bytes_max = 67108864\n";
/// One version's tests; more means that something hangs.
const SECONDS_MAX: &str = "900";

#[derive(clap::Args)]
pub struct Args {
    /// Versions of the package [default: those that CI runs]
    #[arg(long = "version", value_name = "VERSION")]
    versions: Vec<String>,
    /// Use the binaries of an earlier build as they are
    #[arg(long)]
    built: bool,
    /// Measure instead: commands beside the native API, and a thousand sandboxes from one event loop
    #[arg(long)]
    bench: bool,
    /// For pytest, after `--`
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    debian::ensure(debian::NODE)?;
    let binaries = Binaries::new(args.built)?;
    let rootfs = image::ensure(&image::TEST)?;
    let named: Vec<&str> = args.versions.iter().map(String::as_str).collect();
    let versions = if named.is_empty() { VERSIONS } else { &named };
    if args.bench {
        return bench(&binaries, &rootfs, versions, |_| {});
    }
    drive(&binaries, &rootfs, versions, &args.pytest, |_| {})
}

/// Measures the last of `versions`; each line that is printed goes to `each` as well.
pub fn bench(binaries: &Binaries, rootfs: &Path, versions: &[&str], each: impl FnMut(&str)) -> Result<()> {
    debian::ensure(debian::STOCK)?;
    let environment = &environments(&versions[versions.len().saturating_sub(1)..])?[0];
    stock::on_node("e2b", binaries, rootfs, SMALL, |node| {
        let mut bench = driven(node, environment)?;
        bench.arg(BENCH);
        stock::told(step::tee(bench, each)?, BENCH)
    })
}

/// Runs the suite for each version on one node; `each` gets every line that is printed.
pub fn drive(
    binaries: &Binaries,
    rootfs: &Path,
    versions: &[&str],
    pytest: &[String],
    mut each: impl FnMut(&str),
) -> Result<()> {
    debian::ensure(debian::STOCK)?;
    let environments = environments(versions)?;
    stock::on_node("e2b", binaries, rootfs, "", |node| {
        let mut failed = Vec::new();
        for (version, environment) in versions.iter().zip(&environments) {
            println!("e2b {version}");
            let mut suite = driven(node, environment)?;
            suite.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE]).args(pytest);
            let status = step::tee(suite, &mut each)?;
            if !status.success() {
                failed.push(format!("{version} ({status})"));
            }
        }
        if !failed.is_empty() {
            bail!("the suite failed with e2b {}", failed.join(", "));
        }
        Ok(())
    })
}

/// A version's Python, led to the node, with a bound on its time.
fn driven(node: &Node, environment: &Path) -> Result<Command> {
    let (url, key) = node.access()?;
    let mut command = stock::python(environment, SECONDS_MAX);
    command.env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url).env("E2B_API_KEY", &key);
    // Some versions want keys of E2B's own form.
    command.env("E2B_VALIDATE_API_KEY", "false").env("DSEC_RESTART", node.restart_program()?);
    for name in ["E2B_DOMAIN", "E2B_DEBUG", "E2B_ACCESS_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// The virtual environments of the versions.
fn environments(versions: &[&str]) -> Result<Vec<PathBuf>> {
    let of = |version: &&str| {
        let packages = [format!("e2b=={version}"), PYTEST.to_owned()];
        stock::environment("e2b", version, &packages)
    };
    versions.iter().map(of).collect()
}
