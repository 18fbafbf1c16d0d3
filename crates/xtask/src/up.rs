//! `cargo xtask up`: builds what a node needs and becomes `dsec up`.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::{debian, step};

pub fn run(args: &[String]) -> Result<()> {
    debian::ensure(debian::NODE)?;
    let aether = step::build_aether()?;
    let dsec = step::build_dsec()?;
    let mut command = step::command(&dsec);
    command.arg("up").args(args).env("DSEC_AETHER", &aether);
    println!("up: {}", step::shown(&command));
    // Only comes back on failure: signals and the exit code are dsec's own.
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", dsec.display()))
}
