//! inspect.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
}

pub(crate) async fn run(args: Args) -> Outcome {
    print::json_pretty(Client::from_env()?.get(&args.sandbox).await?.created())?;
    Ok(0)
}
