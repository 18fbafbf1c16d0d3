//! Every command that a person or CI runs: `cargo xtask <verb>`.
//!
//! Depends on none of our crates, so that it builds in seconds on a fresh machine and can build the rest. What it
//! installs (Debian packages) it names before it does.

mod arch;
mod bench;
mod ci;
mod debian;
mod demo;
mod deny;
mod e2b;
mod fuzz;
mod image;
mod lab;
mod leak;
mod python;
mod road;
mod step;
mod stock;
mod swerex;
mod tidy;
mod up;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, check, show and measure DSec")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The main job on real input: 8 sandboxes, a real project's tests, ports, and nothing left behind
    Demo(demo::Args),
    /// Build and start a node here; arguments go to `dsec up`
    Up {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Everything that must hold before a change lands
    Ci,
    /// Source rules: `//!`, lengths, names, `unsafe`, `unwrap`, crate edges
    Tidy,
    /// Print the crate graph and compare it with docs/arch.golden (BLESS=1 rewrites it)
    Arch,
    /// Banned crates, licences and sources of every dependency, by deny.toml
    Deny,
    /// Drive a node with the stock e2b package, in several versions
    E2b(e2b::Args),
    /// Drive a node with the stock swe-rex package, in several versions, and with its own tests
    Swerex(swerex::Args),
    /// Print each file of a verb's road, with the line of its entry: `cargo xtask path create`
    Path { verb: String },
    /// Build the default base image (a root file system in a tar) from Debian packages; cached
    Image(image::Args),
    /// Feed the parsers of ids, requests, frames and archives with what is hostile, guided by coverage
    Fuzz(fuzz::Args),
    /// Run a command in an emulated machine over this one's files: another kernel, cgroup v2 alone
    Lab(lab::Args),
    /// Build the Python wheel, with the server and the agent in it; prints its path and size
    Wheel,
    /// Build, install, type-check and test the Python package; arguments go to pytest
    Python {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure ours and its peers side by side
    Bench(bench::Args),
    /// The timed loop of a peer runtime, in its own mount namespace; `bench` calls it
    #[command(hide = true)]
    PeerLoop {
        #[arg(long)]
        runtime: String,
        #[arg(long)]
        bundle: PathBuf,
        #[arg(long)]
        runs: usize,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Up { args } => up::run(&args),
        Verb::Ci => ci::run(),
        Verb::Tidy => tidy::run(),
        Verb::Arch => arch::run(),
        Verb::Deny => deny::run(),
        Verb::E2b(args) => e2b::run(&args),
        Verb::Swerex(args) => swerex::run(&args),
        Verb::Path { verb } => road::run(&verb),
        Verb::Image(args) => image::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Lab(args) => lab::run(&args),
        Verb::Wheel => python::wheel(),
        Verb::Python { args } => python::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::PeerLoop { runtime, bundle, runs } => bench::peer::timed_loop(&runtime, &bundle, runs),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
