//! forge is this program under another name: a symlink `dsec-forge` to it, so that one binary is all there is to ship
//! and the process list says who is who. It runs without the CLI's threads.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use runtime::container::forge::{Config, run};

const NAME: &str = "dsec-forge";

#[derive(Parser)]
#[command(name = NAME)]
struct Args {
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    aether: PathBuf,
    #[arg(long, default_value_t = 8)]
    pool: usize,
}

/// Runs forge where that is the name that this program was started by.
pub(crate) fn run_if_named() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    (Path::new(&name).file_name() == Some(OsStr::new(NAME))).then(forge)
}

fn forge() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    super::open_files::set(super::open_files::FORGE);
    let config = Config { data: args.data, socket: args.socket, aether: args.aether, pool_size: args.pool };
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "forge ends");
            ExitCode::FAILURE
        }
    }
}

/// The symlink to start it by.
pub(crate) fn ensure_link(data: &Path) -> io::Result<PathBuf> {
    link(data, NAME)
}

/// A symlink to this program, made anew: the program may have moved since the last start.
pub(super) fn link(data: &Path, name: &str) -> io::Result<PathBuf> {
    let run = data.join("run");
    std::fs::create_dir_all(&run)?;
    let (link, fresh) = (run.join(name), run.join(format!("{name}.{}", std::process::id())));
    std::os::unix::fs::symlink(std::env::current_exe()?, &fresh)?;
    std::fs::rename(&fresh, &link)?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_leads_to_this_program_however_often_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let link = ensure_link(dir.path()).unwrap();
            assert_eq!(std::fs::read_link(link).unwrap(), std::env::current_exe().unwrap());
        }
        assert_eq!(std::fs::read_dir(dir.path().join("run")).unwrap().count(), 1);
    }
}
