//! The demo's input: a real project's source distribution, and pytest with what it needs, from the package index that
//! pip is set up for on this machine. Fetched once for each pin, into `target/demo`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::step;

/// Pure Python, carries its tests in its sdist, and they take a second or two.
const PROJECT: &str = "toolz==1.2.0";
const PYTEST: &str = "pytest==8.4.2";
/// Of the base image, Debian bookworm: wheels are chosen for it, not for the host's Python.
const PYTHON_VERSION: &str = "3.11";

/// Finds its own libraries wherever the layer is mounted, and leaves the project's own path alone.
const WRAPPER: &str = "#!/bin/sh
here=$(dirname \"$(readlink -f \"$0\")\")/..
PYTHONPATH=\"$here/lib${PYTHONPATH:+:$PYTHONPATH}\" exec python3 -m pytest \"$@\"
";

/// Directories ready to be imported as layers.
pub struct Inputs {
    pub project: PathBuf,
    pub toolkit: PathBuf,
}

pub fn fetch() -> Result<Inputs> {
    let dir = step::root().join("target/demo").join(format!("{PROJECT}-{PYTEST}").replace("==", "-"));
    let inputs = Inputs { project: dir.join("project"), toolkit: dir.join("toolkit") };
    if dir.is_dir() {
        println!("demo: {PROJECT} and {PYTEST} are here already");
        return Ok(inputs);
    }
    let part = dir.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(&part)?;
    let fetched = fetch_project(&part).and_then(|()| fetch_toolkit(&part.join("toolkit")));
    if let Err(error) = fetched {
        fs::remove_dir_all(&part)?;
        return Err(error);
    }
    fs::rename(&part, &dir)?;
    Ok(inputs)
}

fn fetch_project(part: &Path) -> Result<()> {
    let downloads = part.join("downloads");
    let mut pip = step::command("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps", "--dest"])
        .arg(&downloads);
    step::run(pip.arg(PROJECT)).context("is a Python package index reachable?")?;
    let archive = only_entry(&downloads)?;
    let unpacked = part.join("unpacked");
    fs::create_dir(&unpacked)?;
    step::run(
        step::command("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked).arg("--no-same-owner"),
    )?;
    fs::rename(only_entry(&unpacked)?, part.join("project"))?;
    fs::remove_dir(&unpacked)?;
    Ok(fs::remove_dir_all(&downloads)?)
}

fn fetch_toolkit(toolkit: &Path) -> Result<()> {
    let mut pip = step::command("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--root-user-action",
        "ignore",
    ]);
    pip.args([
        "--python-version",
        PYTHON_VERSION,
        "--implementation",
        "py",
        "--abi",
        "none",
        "--platform",
        "any",
        "--target",
    ]);
    step::run(pip.arg(toolkit.join("lib")).arg(PYTEST))?;
    fs::create_dir_all(toolkit.join("bin"))?;
    let wrapper = toolkit.join("bin/pytest");
    fs::write(&wrapper, WRAPPER)?;
    Ok(fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?)
}

/// The one thing in a directory.
fn only_entry(dir: &Path) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(dir)?.flatten().map(|e| e.path()).collect();
    match entries.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!("{} should hold one thing, and holds {}", dir.display(), entries.len()),
    }
}
