//! What a node is made of: the `dsec` binary, the static aether, the test root file system.
//!
//! CI names them by environment (`DSEC_BINARY`, `DSEC_AETHER`, `DSEC_TEST_ROOTFS`); by hand they are where `xtask`
//! builds them. A path that does not exist is an error that says how to build it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The three, found.
#[derive(Debug, Clone)]
pub struct Artifacts {
    pub dsec: PathBuf,
    pub aether: PathBuf,
    pub rootfs: PathBuf,
}

impl Artifacts {
    /// Errors: which one is missing, and what builds it.
    pub fn find() -> Result<Self> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        Ok(Self {
            dsec: one("DSEC_BINARY", Some(target.join("fast/dsec")), "cargo build -p dsec --profile fast")?,
            aether: one(
                "DSEC_AETHER",
                Some(target.join("static/x86_64-unknown-linux-gnu/fast/aether")),
                "cargo xtask ci",
            )?,
            rootfs: one("DSEC_TEST_ROOTFS", newest("test"), "cargo xtask image --test")?,
        })
    }

    /// The root file system of that name, in a tar: `python`, `node`, `java`. Errors: how to build it.
    pub fn image(name: &str) -> Result<PathBuf> {
        let variable = format!("DSEC_TEST_{}", name.to_uppercase());
        one(&variable, newest(name), &format!("cargo xtask image --name {name}"))
    }
}

fn one(variable: &str, built: Option<PathBuf>, how: &str) -> Result<PathBuf> {
    let named = std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    match named.or(built) {
        Some(path) if path.is_file() => Ok(std::path::absolute(path)?),
        Some(path) => bail!("{} is not there: build it by `{how}`, or set {variable}", path.display()),
        None => bail!("nothing built is there: build it by `{how}`, or set {variable}"),
    }
}

/// The newest image of that name that was built here.
fn newest(name: &str) -> Option<PathBuf> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/images");
    let all = std::fs::read_dir(images).ok()?.flatten();
    all.filter(|e| {
        let file = e.file_name();
        let file = file.to_string_lossy();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && rest.ends_with(".tar"))
    })
    .max_by_key(|e| e.metadata().and_then(|m| m.modified()).ok())
    .map(|e| e.path())
}
