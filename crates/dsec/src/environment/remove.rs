//! env rm.

use libdsec::Client;

use crate::outcome::{self, Outcome};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME or NAME:VERSION
    #[arg(required = true)]
    environments: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let environments = Client::from_env()?.environments();
    outcome::each(&args.environments, "removed", json, async |environment| {
        environments.remove(environment).await
    })
    .await
}
