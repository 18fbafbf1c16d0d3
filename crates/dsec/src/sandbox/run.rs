//! run: a sandbox for one command. It is stopped however this ends, Ctrl-C included.

use libdsec::{Client, Code, Sandbox, SandboxSpec};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    attach::OnSignal,
    exec::{How, What},
    spec::SpecArgs,
};
use crate::{
    outcome::{self, Failure, Outcome},
    print,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The exit status is that of `dsec exec`. The sandbox is stopped at the end, also after Ctrl-C; with --keep it
is left to its TTL, and its id printed on stderr.

Examples:
  dsec run debian -- python3 -c 'print(1 + 1)'
  dsec run -it debian -- bash
  dsec run --memory 2G --network egress -u root debian --sh 'apt-get update && apt-get install -y gcc'")]
pub(crate) struct Args {
    #[command(flatten)]
    how: How,
    /// Leave the sandbox when the command has ended
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    what: What,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let spec = args.spec.into_spec()?;
    let sandbox = create(&Client::from_env()?, spec, json).await?;
    let exec = args.how.command(&sandbox, args.what);
    let on_signal = if args.keep { OnSignal::Forward } else { OnSignal::Stop(sandbox.clone()) };
    let ended = args.how.join(exec, json, on_signal).await;
    if args.keep {
        outcome::note(&format!("dsec: {} is kept", sandbox.id()));
        return ended;
    }
    match sandbox.stop().await {
        // Its TTL ran out, or somebody stopped it.
        Ok(()) | Err(libdsec::Error { code: Code::NotFound, .. }) => ended,
        // Of two failures the first one tells more.
        Err(e) => ended.and_then(|_| Err(e.into())),
    }
}

/// A signal while it is made must not leave it behind.
async fn create(client: &Client, spec: SandboxSpec, json: bool) -> Result<Sandbox, Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let bar = print::spinner("creating a sandbox", json);
    let creating = client.create(spec);
    tokio::pin!(creating);
    let number = tokio::select! {
        created = &mut creating => {
            bar.finish_and_clear();
            return Ok(created?);
        }
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
    };
    if let Ok(sandbox) = creating.await {
        let _ = sandbox.stop().await;
    }
    bar.finish_and_clear();
    std::process::exit(128 + number)
}
