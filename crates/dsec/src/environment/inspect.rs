//! env inspect.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME or NAME:VERSION
    environment: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    print::json_pretty(&Client::from_env()?.environments().inspect(&args.environment).await?)?;
    Ok(0)
}
