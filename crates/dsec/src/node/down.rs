//! down: stops the server of a data directory, and first every sandbox on it. With `--keep` the sandboxes live on and
//! the next `dsec up` finds them again.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use futures_util::{StreamExt, stream};
use libdsec::{Client, Code, ListQuery};

use runtime::container::run_dir;

use super::lock::{self, Holder};
use crate::{
    config::{self, Config},
    outcome::{self, Outcome},
    print,
};

/// Stops in flight.
const STOPS_AT_ONCE: usize = 16;
/// Requests get their time to end, then the server goes.
const EXIT_WITHIN: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Of which data directory [default: as of `dsec up`]
    #[arg(long, value_name = "DIR", env = "DSEC_DATA")]
    data: Option<PathBuf>,
    /// Let the sandboxes live: the next `dsec up` finds them again
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let data = match args.data {
        Some(data) => data,
        None => known_data()?.unwrap_or_else(config::data_default),
    };
    let data = std::path::absolute(data).context("data")?;
    let data = data.canonicalize().unwrap_or(data);
    if matches!(lock::holder(&data)?, Holder::Nobody) {
        if args.keep || !run_dir::is_mounted(&data).context("the mounts of this machine")? {
            return Err(anyhow::anyhow!("no server is running on {}", data.display()).into());
        }
        take_over(&data, json).await?;
    }
    let stopped = if args.keep { 0 } else { stop_all(&data, json).await? };
    lock::terminate(&data, EXIT_WITHIN).await?;
    if json {
        print::json(&serde_json::json!({"data": data, "sandboxes_stopped": stopped}))?;
    } else {
        print::line(format_args!("dsec is down; {stopped} sandboxes stopped"))?;
    }
    Ok(0)
}

/// The data of the server that the context file names, if it is one of this machine.
fn known_data() -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = libdsec::default_context_path() else { return Ok(None) };
    Ok(libdsec::Context::load(&path)?.and_then(|context| context.data).filter(|data| data.is_dir()))
}

/// A server that was killed leaves sandboxes, forge and mounts: another finds them, so that they can be ended.
async fn take_over(data: &std::path::Path, json: bool) -> anyhow::Result<()> {
    if !json {
        outcome::note("dsec: no server is running, but one has left something: it is taken over and ended");
    }
    let config = Config {
        data: data.to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        context: PathBuf::new(),
        ..Config::default()
    };
    super::up::start(&config.validated()?, None, false).await.map(drop)
}

async fn stop_all(data: &std::path::Path, json: bool) -> anyhow::Result<usize> {
    let access = libdsec::Context::load(&config::data_context(data))?
        .context("the server has not said where it is")?;
    let client = Client::from_context(&access)?;
    let living = client
        .list(ListQuery::default())
        .await
        .context("listing the sandboxes (use --keep to leave them)")?;
    let bar = print::spinner(format!("stopping {} sandboxes", living.len()), json);
    let ends = stream::iter(living)
        .map(|info| {
            let sandbox = client.sandbox(info);
            async move { (sandbox.id().clone(), sandbox.stop().await) }
        })
        .buffer_unordered(STOPS_AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    bar.finish_and_clear();
    let mut stopped = 0;
    for (id, end) in ends {
        match end {
            Ok(()) => stopped += 1,
            // It ended meanwhile.
            Err(e) if e.code == Code::NotFound => {}
            Err(e) => bail!("{id} did not stop, so the server goes on: {e}"),
        }
    }
    Ok(stopped)
}
