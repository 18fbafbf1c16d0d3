//! env rm.

use libdsec::Client;

use crate::{
    outcome::{self, Outcome},
    print,
};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME or NAME:VERSION
    #[arg(required = true)]
    environments: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let environments = Client::from_env()?.environments();
    let mut failed = false;
    for environment in &args.environments {
        match environments.remove(environment).await {
            Ok(()) if json => print::json(&serde_json::json!({"removed": environment}))?,
            Ok(()) => print::line(print::plain(environment))?,
            Err(e) => {
                failed = true;
                outcome::report(&e.into(), json);
            }
        }
    }
    Ok(if failed { outcome::PLATFORM } else { 0 })
}
