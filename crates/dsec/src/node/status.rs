//! status: does the server answer, and what runs on it. Exit code 0 only where it answers and knows the key.

use std::path::PathBuf;

use libdsec::{Client, Context, ListQuery, State};

use super::lock::{self, Holder};
use crate::{config, outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The server of this data directory, not that of the context file
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let access = match &args.data {
        Some(data) => match lock::holder(data)? {
            Holder::Nobody => {
                return Err(anyhow::anyhow!("no server is running on {}", data.display()).into());
            }
            Holder::Server(_) => Context::load(&config::data_context(data))?
                .ok_or_else(|| anyhow::anyhow!("the server on {} is still starting", data.display()))?,
        },
        None => Context::from_env()?,
    };
    let client = Client::from_context(&access)?;
    let living = client.list(ListQuery::default()).await?;
    let images = client.images().list().await?;
    let running = living.iter().filter(|s| s.state == State::Running).count();
    let execs: u64 = living.iter().map(|s| u64::from(s.execs_live)).sum();
    if json {
        let (sandboxes, images) = (living.len(), images.len());
        print::json(&serde_json::json!({
            "url": access.url, "sandboxes": sandboxes, "sandboxes_running": running, "execs_live": execs, "images": images
        }))?;
        return Ok(0);
    }
    print::line(format_args!("{} is up", print::plain(&access.url)))?;
    print::line(format_args!(
        "{} sandboxes, {running} running, {execs} commands; {} images",
        living.len(),
        images.len()
    ))?;
    Ok(0)
}
