//! layerd is this program under another name, as forge is: a symlink `dsec-layerd` to it. The holder runs the same again
//! with `--worker`.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Parser;
use layerd::{
    ensure::{self, Found},
    holder, worker,
};
use storage::StoreConfig;

const NAME: &str = "dsec-layerd";

#[derive(Parser)]
#[command(name = NAME)]
struct Args {
    #[arg(long)]
    data: PathBuf,
    /// Serve the connection that is the standard input
    #[arg(long)]
    worker: bool,
    /// Nobody has served it before
    #[arg(long)]
    first: bool,
}

/// Runs layerd where that is the name that this program was started by.
pub(crate) fn run_if_named() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    (Path::new(&name).file_name() == Some(OsStr::new(NAME))).then(|| run(PathBuf::from(name)))
}

fn run(program: PathBuf) -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    super::open_files::set(super::open_files::SERVER);
    let done = match args.worker {
        true => worker::run(&args.data, args.first),
        false => holder::run(&args.data, |is_first| {
            let mut command = Command::new(&program);
            command.arg("--data").arg(&args.data).arg("--worker");
            if is_first {
                command.arg("--first");
            }
            command
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "layerd ends");
            ExitCode::FAILURE
        }
    }
}

/// Makes sure that it runs, where there is a store. Blocks.
pub(crate) fn ensure(data: &Path, store: &StoreConfig) -> io::Result<Option<Found>> {
    if !store.is_set() {
        return Ok(None);
    }
    let program = super::forge::link(data, NAME)?;
    ensure::running(data, &program, store).map(Some)
}
