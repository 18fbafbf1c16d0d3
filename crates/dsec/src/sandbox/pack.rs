//! pack: what a sandbox has written, as an image that starts new ones.

use clap::ValueEnum;
use libdsec::{Client, LayerKind, PackRequest, Scrub};

use crate::{outcome::Outcome, print, units};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// The sandbox's layers with the diff on top
    Base,
    /// The diff alone, to be put over any base
    Workspace,
    /// The same, above workspaces
    Toolkit,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The sandbox is held still for some milliseconds, then runs on. What is scrubbed is gone from the image, also where
a lower layer has it; the sandbox itself keeps it. Patterns are over absolute paths: `*` within a name, `**` across.

Examples:
  dsec pack work solved
  dsec pack work env:2 --caches --histories --exclude '/home/*/answers/**' --exclude '/**/*.key'
  dsec pack work tools --kind toolkit")]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
    /// Of the image: NAME or NAME:VERSION
    #[arg(value_name = "NAME[:VERSION]")]
    image: String,
    #[arg(long, value_enum, default_value = "base")]
    kind: Kind,
    /// Leave out what matches; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Leave out histories of shells, editors and clients of databases
    #[arg(long)]
    histories: bool,
    /// Leave out, of git repositories, what neither HEAD nor the index reaches
    #[arg(long)]
    git_unreachable: bool,
    /// Leave out caches, and what is in /tmp and /var/tmp
    #[arg(long)]
    caches: bool,
    /// Leave out files that changed after this one did
    #[arg(long, value_name = "PATH")]
    newer_than: Option<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let (name, version) = args.image.split_once(':').unwrap_or((&args.image, "latest"));
    let request = PackRequest {
        version: version.to_owned(),
        kind: match args.kind {
            Kind::Base => LayerKind::Base,
            Kind::Workspace => LayerKind::Workspace,
            Kind::Toolkit => LayerKind::Toolkit,
        },
        scrub: Scrub {
            exclude: args.exclude,
            shell_history: args.histories,
            caches: args.caches,
            git_unreachable: args.git_unreachable,
            newer_than: args.newer_than,
        },
        ..PackRequest::new(name)
    };
    let sandbox = Client::from_env()?.get(&args.sandbox).await?;
    let bar = print::spinner("packing", json);
    let report = sandbox.pack_diff(request).await?;
    bar.finish_and_clear();
    if json {
        print::json(&report)?;
    } else {
        print::line(format_args!(
            "{}:{}  {} files, {}  {}",
            report.image.name,
            report.image.version,
            report.files,
            units::size(report.size_bytes),
            report.layer
        ))?;
        if report.scrubbed_count > 0 {
            print::line(format_args!("{} paths left out (--json names them)", report.scrubbed_count))?;
        }
    }
    Ok(0)
}
