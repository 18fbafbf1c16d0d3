//! Stock packages of foreign APIs, as they come from the package index, against a node of this build: what `e2b` and
//! `swerex` have in common.
//!
//! Invariant: what was there before is there after, and nothing of the node.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use anyhow::{Context, Result, bail};

use crate::{
    demo::{Scratch, node::Node},
    image, leak, step,
};

/// The name that the tests know the image by.
const IMAGE: &str = "debian";

pub struct Binaries {
    pub dsec: PathBuf,
    pub aether: PathBuf,
}

impl Binaries {
    /// `built`: those of an earlier build, as they are.
    pub fn new(built: bool) -> Result<Self> {
        let aether = if built { step::built_aether()? } else { step::build_aether()? };
        let dsec = if built { step::built_dsec()? } else { step::build_dsec()? };
        Ok(Self { dsec, aether })
    }
}

/// `work` on a node of its own that has the image; then nothing may be left. `name` is of the scratch directory.
pub fn on_node(
    name: &str,
    binaries: &Binaries,
    rootfs: &Path,
    config: &str,
    work: impl FnOnce(&Node) -> Result<()>,
) -> Result<()> {
    let scratch = Scratch(PathBuf::from(format!("/var/tmp/dsec-{name}-{}", std::process::id())));
    fs::create_dir_all(&scratch.0)?;
    let place = scratch.0.clone();
    let before = leak::Snapshot::beside_others(&place);
    let mut node = Node::new(&binaries.dsec, &binaries.aether, &scratch.0);
    let done = start(&mut node, rootfs, config).and_then(|()| work(&node));
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

/// Errors: `what` has failed.
pub fn told(status: ExitStatus, what: &str) -> Result<()> {
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}

/// The Python of an environment, with a bound on its time.
pub fn python(environment: &Path, seconds_max: &str) -> Command {
    let mut command = step::command("timeout");
    command.args(["--kill-after=10", seconds_max]).arg(environment.join("bin/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The virtual environment of a version with these packages, made if it is not whole; kept for the next run.
pub fn environment(name: &str, version: &str, packages: &[String]) -> Result<PathBuf> {
    let dir = step::root().join("target").join(name).join(version);
    let (stamp, wanted) = (dir.join("installed"), packages.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(dir);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    println!("{name} {version}: a virtual environment at {}", dir.display());
    step::run(step::command("python3").args(["-m", "venv"]).arg(&dir))?;
    step::run(pip(&dir, "install").args(packages)).context("is a Python package index reachable?")?;
    fs::write(&stamp, wanted)?;
    Ok(dir)
}

/// A verb of an environment's pip.
pub fn pip(environment: &Path, verb: &str) -> Command {
    let mut pip = step::command(environment.join("bin/python"));
    pip.args(["-m", "pip", verb, "--quiet", "--disable-pip-version-check"]);
    pip
}
