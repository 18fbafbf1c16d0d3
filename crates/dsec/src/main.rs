//! The one binary: `dsec up` is the server, every other command is a caller of it over libdsec.
//!
//! Exit codes are a contract: the command's own for `exec` and `run`, 124 where its timeout ended it, 125 for an
//! error of the platform or of this tool, 2 for a command line that does not parse.

mod cli;
mod config;
mod environment;
mod image;
mod mcp;
mod node;
mod outcome;
mod print;
mod project;
mod sandbox;
mod serve;
mod store;
mod terminal;
mod units;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Verb};
use outcome::Outcome;

fn main() -> ExitCode {
    // forge forks, so it must start before any thread does.
    if let Some(code) = node::forge::run_if_named().or_else(node::layerd::run_if_named) {
        return code;
    }
    let cli = Cli::parse();
    let json = cli.json;
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| outcome::Failure::from(anyhow::Error::from(e).context("starting the runtime")))
        .and_then(|runtime| {
            let outcome = runtime.block_on(dispatch(cli));
            // A thread may sit in a read of standard input for ever.
            runtime.shutdown_background();
            outcome
        });
    outcome::exit_code(outcome, json)
}

async fn dispatch(cli: Cli) -> Outcome {
    let json = cli.json;
    match cli.verb {
        Verb::Up(args) => node::up::run(args, json).await,
        Verb::Down(args) => node::down::run(args, json).await,
        Verb::Status(args) => node::status::run(args, json).await,
        Verb::SystemdUnit(args) => node::systemd_unit::run(&args, json),
        Verb::Image(verb) => image::run(verb, json).await,
        Verb::Env(verb) => environment::run(verb, json).await,
        Verb::Build(args) => image::build::run(*args, json).await,
        Verb::Store(verb) => store::run(verb, json).await,
        Verb::Create(args) => sandbox::create::run(args, json).await,
        Verb::Ls(args) => sandbox::list::run(args, json).await,
        Verb::Inspect(args) => sandbox::inspect::run(args).await,
        Verb::Exec(args) => sandbox::exec::run(args, json).await,
        Verb::Run(args) => sandbox::run::run(args, json).await,
        Verb::Cp(args) => sandbox::copy::run(args, json).await,
        Verb::Logs(args) => sandbox::logs::run(args, json).await,
        Verb::Port(args) => sandbox::port::run(args, json).await,
        Verb::Stop(args) => sandbox::stop::run(args, json).await,
        Verb::Ttl(args) => sandbox::ttl::run(args, json).await,
        Verb::Checkpoint(verb) => sandbox::checkpoint::run(verb, json).await,
        Verb::Rollback(args) => sandbox::checkpoint::rollback(args, json).await,
        Verb::Fork(args) => sandbox::fork::run(args, json).await,
        Verb::Pack(args) => sandbox::pack::run(args, json).await,
        Verb::Mcp(args) => mcp::run(args, json).await,
        Verb::Project(verb) => project::run(verb, json).await,
        Verb::Key(verb) => project::run_key(verb, json).await,
        Verb::Audit(args) => project::audit(args, json).await,
    }
}
