//! mcp: sandboxes as tools of the Model Context Protocol, by standard input and output, or by HTTP.

use std::{io::IsTerminal, net::SocketAddr};

use anyhow::{Context as _, anyhow, bail};
use libdsec::{Client, Context, SandboxSpec};
use mcp::{Door, Scope, Tools};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::{
    outcome::{Failure, Outcome},
    print,
    sandbox::spec::ShapeArgs,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Without --image and --sandbox each call of a tool names its sandbox, and the client makes and stops them.
With --image there is a sandbox of the session, made at its first use and stopped when this ends, however it ends.
With --sandbox the tools act in that one, and no other can be reached.

By standard input and output it is started by its client. With --listen it serves HTTP at /mcp, to those who send
`Authorization: Bearer KEY`: the key of the server that it uses, or the one that --key-env names.

Examples:
  dsec mcp --image debian
  dsec mcp --image debian --memory 2G --network egress --workspace project
  dsec mcp --sandbox work
  dsec mcp --listen 127.0.0.1:8765
  claude mcp add sandbox -- dsec mcp --image debian")]
pub(crate) struct Args {
    /// Serve HTTP here, instead of standard input and output: ADDR:PORT, or a port of loopback; 0 is any free one
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// With --listen: the variable of the environment that holds the key [default: the server's API key]
    #[arg(long, value_name = "VARIABLE", requires = "listen")]
    key_env: Option<String>,
    /// With --listen: a name by which this may be called, beside loopback and its address; may be repeated
    #[arg(long, value_name = "NAME", requires = "listen")]
    allow_host: Vec<String>,
    /// With --listen: an origin of pages that may call this, e.g. `https://example.org`; may be repeated
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    allow_origin: Vec<String>,
    /// An id or a name: act in this one sandbox
    #[arg(long, conflicts_with = "image")]
    sandbox: Option<String>,
    /// Make a sandbox of this image at the first use, and stop it at the end
    #[arg(long)]
    image: Option<String>,
    /// What to log on stderr, e.g. info
    #[arg(long, value_name = "FILTER", env = "DSEC_LOG", default_value = "warn")]
    log: String,
    #[command(flatten)]
    shape: ShapeArgs,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => text.parse().map_err(|_| "expected ADDR:PORT, or a port".to_owned()),
    }
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    log_to_stderr(&args.log);
    let context = Context::from_env()?;
    let scope = match (args.sandbox, args.image) {
        (None, Some(image)) => Scope::Own(Box::new(args.shape.into_spec(image, mcp::LEASE)?)),
        (sandbox, None) => {
            without_shape(args.shape)?;
            sandbox.map_or(Scope::Any, Scope::One)
        }
        (Some(_), Some(_)) => return Err(anyhow!("--sandbox and --image exclude each other").into()),
    };
    let stop = CancellationToken::new();
    stop_at_signals(&stop)?;
    let tools = tokio::select! {
        opened = Tools::open(Client::from_context(&context)?, scope, env!("CARGO_PKG_VERSION")) => opened?,
        () = stop.cancelled() => return Ok(0),
    };
    let served = match args.listen {
        None => mcp::serve_stdio(&tools, stop).await.map_err(Failure::from),
        Some(listen) => {
            let key = key(args.key_env.as_deref(), context)?;
            let door = Door { key, hosts: args.allow_host, origins: args.allow_origin };
            serve_http(&tools, listen, door, stop, json).await
        }
    };
    // Whatever ended it: nothing of ours is left.
    tools.close().await;
    served.map(|()| 0)
}

/// A limit that would be ignored must be told. Errors: one was given.
fn without_shape(shape: ShapeArgs) -> Result<(), Failure> {
    let spec = SandboxSpec::new("-");
    if shape.into_spec(spec.image.clone(), std::time::Duration::from_millis(spec.ttl_ms))? == spec {
        return Ok(());
    }
    Err(anyhow!("limits, layers and defaults of a sandbox go with --image").into())
}

async fn serve_http(
    tools: &Tools,
    listen: SocketAddr,
    door: Door,
    stop: CancellationToken,
    json: bool,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("listening on {listen}"))?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    if json {
        print::json(&serde_json::json!({"url": url}))?;
    } else {
        print::line(format_args!("listening on {url}"))?;
    }
    Ok(mcp::serve_http(tools, listener, door, stop).await?)
}

fn key(variable: Option<&str>, context: Context) -> anyhow::Result<String> {
    let Some(variable) = variable else { return Ok(context.api_key) };
    match std::env::var(variable) {
        Ok(key) if !key.is_empty() => Ok(key),
        _ => bail!("--key-env: the variable {variable} is not set"),
    }
}

/// Standard output is the protocol's. The SDK tells at lower levels what a call carried, which no log may hold.
fn log_to_stderr(filter: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(format!("{filter},rmcp=error"))
        .unwrap_or_else(|_| EnvFilter::new("warn,rmcp=error"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr).init();
}

/// Each of them ends the work in order, sandboxes and all; a second one is the same wish.
fn stop_at_signals(stop: &CancellationToken) -> std::io::Result<()> {
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut signals, stop) = (signal(kind)?, stop.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                stop.cancel();
            }
        });
    }
    Ok(())
}
