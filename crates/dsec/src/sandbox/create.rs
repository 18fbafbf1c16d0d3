//! create: ids on stdout as each sandbox is ready.

use indicatif::ProgressBar;
use libdsec::{Client, Created, Error};

use super::spec::SpecArgs;
use crate::{
    outcome::{self, Outcome},
    print,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Prints one id a line, as each is ready; with --json one object a line. One that fails is told on stderr, the
rest go on, and the exit status is 125.

Examples:
  dsec create debian
  dsec create debian -n 8 --memory 1G --ttl 30m --label job=7
  dsec create debian --workspace project --toolkit tools --name work")]
pub(crate) struct Args {
    /// How many alike
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    count: u32,
    #[command(flatten)]
    spec: SpecArgs,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let spec = args.spec.into_spec()?;
    let client = Client::from_env()?;
    let bar = print::spinner(format!("creating {}", args.count), json);
    show(client.create_many(args.count, spec), &bar, json).await
}

/// Tells of each as it comes.
pub(super) async fn show(mut created: Created, bar: &ProgressBar, json: bool) -> Outcome {
    let mut failures: Vec<Error> = Vec::new();
    while let Some(next) = created.next().await {
        match next {
            Ok(sandbox) => {
                bar.suspend(|| if json { print::json(sandbox.created()) } else { print::line(sandbox.id()) })?
            }
            Err(e) => {
                // All but the last are told here, the last as every error is.
                if let Some(earlier) = failures.pop() {
                    bar.suspend(|| outcome::report(&earlier.into(), json));
                }
                failures.push(e);
            }
        }
    }
    bar.finish_and_clear();
    failures.pop().map_or(Ok(0), |e| Err(e.into()))
}
