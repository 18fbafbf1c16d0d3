//! image prune: what builds have cached goes.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Images that were built stay; the next build of their Dockerfile runs its steps again.")]
pub(crate) struct Args {}

pub(crate) async fn run(_: Args, json: bool) -> Outcome {
    let removed = Client::from_env()?.images().prune().await?;
    if json {
        print::json(&removed)?;
    } else {
        print::line(format_args!("{} cached steps removed", removed.len()))?;
    }
    Ok(0)
}
