//! `cargo xtask e2b`: the stock e2b package, as it comes from the package index, against a node of this build.
//!
//! Each version has a virtual environment of its own under `target/e2b`, kept for the next run. The tests are those of
//! `crates/e2b/tests/py`; environment variables alone lead the package to the node. Invariant: the package is not
//! touched, and nothing of the node is left. `--bench` measures instead.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    debian,
    demo::{Scratch, node::Node},
    image, leak, step,
};

/// What the face is promised to serve. The last is the newest when this was written.
pub const VERSIONS: &[&str] = &["2.21.1", "2.29.6", "2.45.1", "2.63.0"];
const PYTEST: &str = "pytest==9.0.1";
/// The name that the tests know the image by.
const IMAGE: &str = "debian";
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

pub struct Binaries {
    pub dsec: PathBuf,
    pub aether: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    debian::ensure(debian::NODE)?;
    let aether = if args.built { step::built_aether()? } else { step::build_aether()? };
    let dsec = if args.built { step::built_dsec()? } else { step::build_dsec()? };
    let rootfs = image::ensure(&image::TEST)?;
    let named: Vec<&str> = args.versions.iter().map(String::as_str).collect();
    let versions = if named.is_empty() { VERSIONS } else { &named };
    let binaries = Binaries { dsec, aether };
    if args.bench {
        let newest = versions.last().copied().unwrap_or_default();
        return on_node(&binaries, &rootfs, SMALL, &[newest], |node, environments| {
            step::run(driven(node, &environments[0])?.arg(BENCH))
        });
    }
    drive(&binaries, &rootfs, versions, &args.pytest, |_| {})
}

/// Runs the suite for each version on one node; `each` gets every line that is printed.
pub fn drive(
    binaries: &Binaries,
    rootfs: &Path,
    versions: &[&str],
    pytest: &[String],
    mut each: impl FnMut(&str),
) -> Result<()> {
    on_node(binaries, rootfs, "", versions, |node, environments| {
        let mut failed = Vec::new();
        for (version, environment) in versions.iter().zip(environments) {
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

/// `work` on a node of its own that has the image, with the environments of the versions; then nothing may be left.
fn on_node(
    binaries: &Binaries,
    rootfs: &Path,
    config: &str,
    versions: &[&str],
    work: impl FnOnce(&Node, &[PathBuf]) -> Result<()>,
) -> Result<()> {
    debian::ensure(debian::E2B)?;
    let environments: Result<Vec<_>> = versions.iter().map(|version| environment(version)).collect();
    let environments = environments?;
    let scratch = Scratch(PathBuf::from(format!("/var/tmp/dsec-e2b-{}", std::process::id())));
    fs::create_dir_all(&scratch.0)?;
    let place = scratch.0.clone();
    let before = leak::Snapshot::beside_others(&place);
    let mut node = Node::new(&binaries.dsec, &binaries.aether, &scratch.0);
    let done = start(&mut node, rootfs, config).and_then(|()| work(&node, &environments));
    let down = if node.is_up() { node.down() } else { Ok(()) };
    if done.is_err() {
        node.print_log();
    }
    done?;
    down?;
    drop(scratch);
    leak::assert_none(&before, || leak::Snapshot::beside_others(&place))
}

fn start(node: &mut Node, rootfs: &Path, config: &str) -> Result<()> {
    node.up_with(config)?;
    let mut import = node.cli(["image", "import", IMAGE]);
    step::run(import.arg(rootfs).args(["--user", image::USER, "--workdir", image::WORKDIR]))
}

/// A version's Python, led to the node, with a bound on its time.
fn driven(node: &Node, environment: &Path) -> Result<Command> {
    let (url, key) = node.access()?;
    let mut command = step::command("timeout");
    command.args(["--kill-after=10", SECONDS_MAX]).arg(environment.join("bin/python"));
    command.env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url).env("E2B_API_KEY", &key);
    // Some versions want keys of E2B's own form.
    command.env("E2B_VALIDATE_API_KEY", "false").env("PYTHONDONTWRITEBYTECODE", "1");
    for name in ["E2B_DOMAIN", "E2B_DEBUG", "E2B_ACCESS_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// The virtual environment of a version, made if it is not whole.
fn environment(version: &str) -> Result<PathBuf> {
    let dir = step::root().join("target/e2b").join(version);
    let packages = [format!("e2b=={version}"), PYTEST.to_owned()];
    let (stamp, wanted) = (dir.join("installed"), packages.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(dir);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    println!("e2b {version}: a virtual environment at {}", dir.display());
    step::run(step::command("python3").args(["-m", "venv"]).arg(&dir))?;
    let mut pip = step::command(dir.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&packages);
    step::run(&mut pip).context("is a Python package index reachable?")?;
    fs::write(&stamp, wanted)?;
    Ok(dir)
}
