//! down: stops the server of a data directory, and first every sandbox on it. With `--keep` the sandboxes live on and
//! the next `dsec up` finds them again.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use libdsec::{Client, ListQuery};

use runtime::container::run_dir;
use rustix::process::Signal;

use super::lock::{self, Holder};
use crate::{
    config::{self, Config},
    outcome::{self, Outcome},
    print,
};

/// Requests get their time to end, every sandbox is stopped, then the server goes.
const EXIT_WITHIN: Duration = Duration::from_secs(120);

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
    let living = count(&data).await?;
    let bar = print::spinner(
        if args.keep { "ending".into() } else { format!("stopping {living} sandboxes") },
        json,
    );
    let ended = lock::end(&data, if args.keep { Signal::TERM } else { Signal::USR1 }, EXIT_WITHIN).await;
    bar.finish_and_clear();
    ended?;
    let stopped = if args.keep { 0 } else { living };
    if !args.keep && run_dir::is_mounted(&data).context("the mounts of this machine")? {
        let log = super::log::path(&data);
        return Err(anyhow::anyhow!(
            "the server has ended but left something: see {}; `dsec down` tries again",
            log.display()
        )
        .into());
    }
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

/// Sandboxes that live.
async fn count(data: &std::path::Path) -> anyhow::Result<usize> {
    let access = libdsec::Context::load(&config::data_context(data))?
        .context("the server has not said where it is")?;
    let living = Client::from_context(&access)?.list(ListQuery::default()).await;
    Ok(living.context("listing the sandboxes")?.len())
}
