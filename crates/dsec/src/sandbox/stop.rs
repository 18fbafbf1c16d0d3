//! stop: ends sandboxes; answers when nothing is left of them.

use futures_util::{StreamExt, stream};
use libdsec::{Client, Code, ListQuery, Sandbox};

use crate::{
    outcome::{self, Failure, Outcome},
    print,
};

/// Stops in flight.
const AT_ONCE: usize = 16;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Ids or names
    #[arg(value_name = "SANDBOX", required_unless_present = "all")]
    sandboxes: Vec<String>,
    /// All there are
    #[arg(long, conflicts_with = "sandboxes")]
    all: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let client = Client::from_env()?;
    let named: Vec<(String, Result<Sandbox, libdsec::Error>)> = if args.all {
        let living = client.list(ListQuery::default()).await?;
        living.into_iter().map(|info| (info.id.to_string(), Ok(client.sandbox(info)))).collect()
    } else {
        stream::iter(args.sandboxes)
            .then(|name| {
                let client = client.clone();
                async move { (name.clone(), client.get(&name).await) }
            })
            .collect()
            .await
    };
    let bar = print::spinner("stopping", json);
    let mut ends = stream::iter(named)
        .map(|(name, sandbox)| async move {
            let end = match sandbox {
                Ok(sandbox) => sandbox.stop().await.map(|()| sandbox.id().to_string()),
                Err(e) => Err(e),
            };
            (name, end)
        })
        .buffered(AT_ONCE);
    let mut failure: Option<Failure> = None;
    while let Some((name, end)) = ends.next().await {
        match end {
            Ok(id) => bar.suspend(|| {
                if json {
                    print::json(&serde_json::json!({"stopped": id}))
                } else {
                    print::line(print::plain(&name))
                }
            })?,
            Err(e) if args.all && e.code == Code::NotFound => {}
            Err(e) => {
                if let Some(earlier) = failure.replace(e.into()) {
                    bar.suspend(|| outcome::report(&earlier, json));
                }
            }
        }
    }
    bar.finish_and_clear();
    failure.map_or(Ok(0), Err)
}
