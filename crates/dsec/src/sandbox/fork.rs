//! fork: new sandboxes whose disks start as copies of another's.

use std::time::Duration;

use libdsec::{Client, ForkRequest};

use super::create::show;
use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The children have the spec of the source, but no name; no process comes along. Prints one id a line, as each is
ready; with --json one object a line.

Examples:
  dsec fork work -n 16
  dsec fork work --checkpoint before-tests --ttl 10m --label try=2")]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    count: u32,
    /// The disk as it was then [default: as it is now]
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
    /// Their life, e.g. 30m or 2h [default: as the source was made with]
    #[arg(long, value_parser = units::parse_duration)]
    ttl: Option<Duration>,
    /// KEY=VALUE, over the source's; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    labels: Vec<(String, String)>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let source = Client::from_env()?.get(&args.sandbox).await?;
    let request = ForkRequest {
        checkpoint: args.checkpoint,
        ttl_ms: args.ttl.map(|ttl| ttl.as_millis() as u64),
        labels: args.labels.into_iter().collect(),
        ..ForkRequest::new(args.count)
    };
    let bar = print::spinner(format!("forking {}", args.count), json);
    show(source.fork(request), &bar, json).await
}
