//! ttl: moves a sandbox's deadline.

use std::time::Duration;

use libdsec::Client;

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
    /// Its life from now on, e.g. 30m or 2h
    #[arg(value_parser = units::parse_duration)]
    ttl: Duration,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let info = Client::from_env()?.get(&args.sandbox).await?.set_ttl(args.ttl).await?;
    if json {
        print::json(&info)?;
    } else {
        print::line(format_args!("{} ends in {}", info.id, units::duration_ms(args.ttl.as_millis() as u64)))?;
    }
    Ok(0)
}
