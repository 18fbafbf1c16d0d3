//! The Python package: `cargo xtask wheel` builds it, `cargo xtask python` tests what `pip install` makes of it.
//!
//! The wheel has the extension, and beside it `dsec` and the static `aether`, so that `pip install dsec && dsec up` is
//! a whole installation. The tests run on the installed wheel, with its own server; nothing of the tree is imported.
//! Tools come from PyPI into a virtual environment under `target/`, pinned in `python/requirements.txt`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    debian, image, step,
    stock::{self, Binaries},
};

/// More means that something hangs.
const TESTS_SECONDS_MAX: &str = "1500";
/// The installed package, not the one of the directory that it runs in; and nothing is written there.
const INSTALLED: [&str; 2] = ["-I", "-B"];
const REQUIREMENTS: &str = "python/requirements.txt";
/// Names of Pythons that are newer than `python3` where they are installed at all.
const NEWER: [&str; 2] = ["python3.13", "python3.12"];
/// So that a thousand sandboxes of 64 MiB fit on a small machine, each with a whole core when it can have it.
const SMALL: &str = "[capacity]\ncpu_oversell_percent = 100000\n";
const MINOR_MIN: u32 = 12;
const MINOR_MAX: u32 = 13;

fn target(path: &str) -> PathBuf {
    step::root().join("target/python").join(path)
}

/// `cargo xtask wheel`
pub fn wheel() -> Result<()> {
    debian::ensure(debian::PYTHON)?;
    let aether = step::build_aether()?;
    let wheel = build(&step::build_dsec()?, &aether)?;
    let bytes = fs::metadata(&wheel)?.len();
    println!("{} ({:.1} MB)", wheel.display(), bytes as f64 / 1e6);
    Ok(())
}

/// `cargo xtask python`: arguments go to pytest.
pub fn run(args: &[String]) -> Result<()> {
    debian::ensure(debian::PYTHON)?;
    let aether = step::build_aether()?;
    let dsec = step::build_dsec()?;
    let rootfs = image::ensure(&image::TEST)?;
    test(&dsec, &aether, &rootfs, args, |_| ())
}

/// Builds and installs the wheel, checks its types, runs its tests; each line that they print goes to `each` as well.
pub fn test(
    dsec: &Path,
    aether: &Path,
    rootfs: &Path,
    args: &[String],
    each: impl FnMut(&str),
) -> Result<()> {
    let bin = installed(dsec, aether)?;
    step::run(python(&bin, "sync_face.py").arg("--check"))?;
    step::run(&mut python(&bin, "mypy"))?;
    let mut pytest = step::command("timeout");
    pytest.current_dir(step::root().join("python")).args(["--kill-after=10", TESTS_SECONDS_MAX]);
    pytest.arg(bin.join("python")).args(INSTALLED).args(["-m", "pytest"]).args(args);
    pytest.env("DSEC_TEST_ROOTFS", rootfs);
    // The server of the wheel finds its own agent.
    pytest.env_remove("DSEC_AETHER").env_remove("DSEC_BINARY");
    let status = step::tee(pytest, each)?;
    if !status.success() {
        bail!("the Python tests failed ({status})");
    }
    Ok(())
}

/// Measures the installed package against a node; each line that is printed goes to `each` as well.
pub fn bench(binaries: &Binaries, rootfs: &Path, each: impl FnMut(&str)) -> Result<()> {
    debian::ensure(debian::PYTHON)?;
    let bin = installed(&binaries.dsec, &binaries.aether)?;
    stock::on_node("python", binaries, rootfs, SMALL, |node| {
        let (url, key) = node.access()?;
        let mut bench = python(&bin, "bench.py");
        bench.env("DSEC_URL", url).env("DSEC_API_KEY", key);
        stock::told(step::tee(bench, each)?, "python/bench.py")
    })
}

/// The wheel of these binaries, built and installed; gives the environment's `bin`.
fn installed(dsec: &Path, aether: &Path) -> Result<PathBuf> {
    let wheel = build(dsec, aether)?;
    let bin = environment()?;
    let mut install = python(&bin, "pip");
    install.args(["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]).arg(&wheel);
    step::run(&mut install)?;
    Ok(bin)
}

/// `python -m module`, or a script of `python/`.
fn python(bin: &Path, what: &str) -> Command {
    let mut command = step::command(bin.join("python"));
    command.current_dir(step::root().join("python")).args(INSTALLED);
    if !what.ends_with(".py") {
        command.arg("-m");
    }
    command.arg(what);
    command
}

/// The virtual environment with the pinned tools; gives its `bin`. Made anew where the pins have changed.
fn environment() -> Result<PathBuf> {
    let (venv, stamp) = (target("venv"), target("venv.stamp"));
    let python = interpreter();
    let pins = fs::read_to_string(step::root().join(REQUIREMENTS)).context(REQUIREMENTS)?;
    let pins = format!("# {}\n{pins}", python.display());
    if fs::read_to_string(&stamp).is_ok_and(|made| made == pins) && venv.join("bin/python").exists() {
        return Ok(venv.join("bin"));
    }
    let _ = fs::remove_file(&stamp);
    fs::create_dir_all(target(""))?;
    step::run(step::command(&python).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut install = step::command(venv.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]);
    step::run(&mut install).context("installing the Python tools: does PyPI, or a mirror of it, answer?")?;
    fs::write(&stamp, pins)?;
    Ok(venv.join("bin"))
}

/// The newest Python of the machine that works: some of the tools that we are tested with want more than Debian 12 has.
fn interpreter() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let managed = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let managed = managed.map(|version| version.path().join("bin/python3"));
    let named = NEWER.iter().map(PathBuf::from);
    let newest = named.chain(managed).filter_map(|python| Some((minor(&python)?, python))).max();
    newest.map_or_else(|| "python3".into(), |(_, python)| python)
}

/// Of CPython 3, where it runs and is not newer than what we are tested with.
fn minor(python: &Path) -> Option<u32> {
    let told =
        Command::new(python).args(["-c", "import sys, venv, ssl; print(*sys.version_info[:2])"]).output();
    let told = told.ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(told.stdout).ok()?;
    let minor = text.trim().strip_prefix("3 ")?.parse().ok()?;
    (MINOR_MIN..=MINOR_MAX).contains(&minor).then_some(minor)
}

/// Builds the wheel of these binaries; gives its path.
fn build(dsec: &Path, aether: &Path) -> Result<PathBuf> {
    let bin = environment()?;
    let scripts = target("data/scripts");
    fs::create_dir_all(&scripts)?;
    for (name, from) in [("dsec", dsec), ("aether", aether)] {
        let to = scripts.join(name);
        step::run(step::command("strip").arg("-o").arg(&to).arg(from))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    let out = target("dist");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let mut maturin = python(&bin, "maturin");
    maturin.args(["build", "--quiet", "--out"]).arg(&out).arg("--interpreter").arg(bin.join("python"));
    step::run(&mut maturin)?;
    let wheels = fs::read_dir(&out)?.flatten().map(|e| e.path());
    let wheel = wheels.filter(|p| p.extension().is_some_and(|e| e == "whl")).max();
    wheel.context("maturin built no wheel")
}
