//! image inspect.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    image: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    print::json_pretty(&Client::from_env()?.images().inspect(&args.image).await?)?;
    Ok(0)
}
