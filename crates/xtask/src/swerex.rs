//! `cargo xtask swerex`: the stock swe-rex package, as it comes from the package index, against a node of this build.
//!
//! For each version two suites: ours (`crates/swerex/tests/py`), and the tests of its own source distribution, unpacked
//! under `target/swerex` and run as they are. Those come without fixtures: ours of `crates/swerex/tests/upstream` are
//! put beside them, and name what does not fit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    debian,
    demo::node::Node,
    image, step,
    stock::{self, Binaries},
};

/// What the face is promised to serve. The last is the newest when this was written.
pub const VERSIONS: &[&str] = &["1.2.1", "1.3.0", "1.4.0"];
/// Beside the package: what 1.4.0 imports and does not name, and what runs the tests.
const PACKAGES: &[&str] = &["aiohttp", "pytest==9.0.1", "pytest-asyncio==1.5.0"];
const SUITE: &str = "crates/swerex/tests/py";
const FIXTURES: &str = "crates/swerex/tests/upstream/conftest.py";
/// Of the source distribution: the tests of a runtime behind HTTP. The others are of their own deployments, and of
/// functions of their server.
const THEIRS: &[&str] =
    &["tests/test_execution.py", "tests/test_server.py", "tests/test_remote_deployment.py"];
/// One suite of one version; more means that something hangs.
const SECONDS_MAX: &str = "300";

#[derive(clap::Args)]
pub struct Args {
    /// Versions of the package [default: those that CI runs]
    #[arg(long = "version", value_name = "VERSION")]
    versions: Vec<String>,
    /// Use the binaries of an earlier build as they are
    #[arg(long)]
    built: bool,
    /// For pytest, on our suite, after `--`
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    debian::ensure(debian::NODE)?;
    let binaries = Binaries::new(args.built)?;
    let rootfs = image::ensure(&image::TEST)?;
    let named: Vec<&str> = args.versions.iter().map(String::as_str).collect();
    let versions = if named.is_empty() { VERSIONS } else { &named };
    drive(&binaries, &rootfs, versions, &args.pytest, |_| {})
}

/// Runs the suites for each version on one node; `each` gets every line that is printed.
pub fn drive(
    binaries: &Binaries,
    rootfs: &Path,
    versions: &[&str],
    pytest: &[String],
    mut each: impl FnMut(&str),
) -> Result<()> {
    debian::ensure(debian::STOCK)?;
    let places: Result<Vec<Place>> = versions.iter().map(|version| Place::ensure(version)).collect();
    let places = places?;
    stock::on_node("swerex", binaries, rootfs, "", |node| {
        let mut failed = Vec::new();
        for (version, place) in versions.iter().zip(&places) {
            let mut ours = place.driven(node, binaries)?;
            ours.arg(SUITE).args(pytest);
            let mut theirs = place.driven(node, binaries)?;
            theirs.current_dir(&place.source).args(THEIRS);
            for (suite, command) in [("ours", ours), ("theirs", theirs)] {
                println!("swe-rex {version}, {suite}");
                let status = step::tee(command, &mut each)?;
                if !status.success() {
                    failed.push(format!("{version}, {suite} ({status})"));
                }
            }
        }
        if !failed.is_empty() {
            bail!("a suite failed with swe-rex {}", failed.join("; "));
        }
        Ok(())
    })
}

/// Where a version is.
struct Place {
    environment: PathBuf,
    /// Its source distribution, unpacked.
    source: PathBuf,
}

impl Place {
    fn ensure(version: &str) -> Result<Self> {
        let package = format!("swe-rex=={version}");
        let mut packages = vec![package.clone()];
        packages.extend(PACKAGES.iter().map(|p| (*p).to_owned()));
        let environment = stock::environment("swerex", version, &packages)?;
        let source = environment.join("source");
        if !source.join("tests").is_dir() {
            let archive = environment.join("archive");
            let mut download = stock::pip(&environment, "download");
            download.args(["--no-deps", "--no-binary", ":all:", "--dest"]).arg(&archive).arg(package);
            step::run(&mut download).context("the source distribution")?;
            fs::create_dir_all(&source)?;
            let file = fs::read_dir(&archive)?.flatten().next().context("pip downloaded nothing")?.path();
            let mut unpack = step::command("tar");
            unpack.arg("-xzf").arg(file).args(["--strip-components=1", "--no-same-owner", "-C"]).arg(&source);
            step::run(&mut unpack)?;
        }
        fs::copy(step::root().join(FIXTURES), source.join("tests/conftest.py"))?;
        // They import it from a package, which the archive has not kept.
        fs::write(source.join("tests/__init__.py"), "")?;
        Ok(Self { environment, source })
    }

    /// pytest, led to the node.
    fn driven(&self, node: &Node, binaries: &Binaries) -> Result<Command> {
        let (url, key) = node.access()?;
        let mut command = stock::python(&self.environment, SECONDS_MAX);
        command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
        command.env("DSEC_URL", url).env("DSEC_API_KEY", key).env("DSEC_RESTART", node.restart_program()?);
        // The examples of the documentation call `dsec`.
        let here = binaries.dsec.parent().context("the directory of dsec")?;
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", here.display()));
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        Ok(command)
    }
}
