//! port: a local TCP port whose connections go to a server inside a sandbox.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use libdsec::{Client, Code, Port, Sandbox};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
};

use crate::{
    outcome::{self, Outcome},
    print,
};

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Between looks whether the sandbox still lives.
const LOOK_PERIOD: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Runs until Ctrl-C or the end of the sandbox. The sandbox needs no network for it.

Example:
  dsec port work 8000 --listen 127.0.0.1:9000")]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The local address; port 0 is any free one [default: 127.0.0.1:PORT]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let sandbox = Client::from_env()?.get(&args.sandbox).await?;
    let listen = args.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], args.port)));
    let listener = TcpListener::bind(listen).await.with_context(|| format!("listening on {listen}"))?;
    let local = listener.local_addr()?;
    if json {
        print::json(&serde_json::json!({"listen": local, "sandbox": sandbox.id(), "port": args.port}))?;
    } else {
        print::line(format_args!("forwarding {local} to port {} of {}", args.port, sandbox.id()))?;
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        end = accept(listener, sandbox.port(args.port)) => end?,
        gone = outlived(&sandbox) => return Err(gone.into()),
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(0)
}

/// Comes when the sandbox has ended: nothing will ever answer then.
async fn outlived(sandbox: &Sandbox) -> libdsec::Error {
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        match sandbox.info().await {
            Err(e) if matches!(e.code, Code::NotFound | Code::SandboxGone) => return e,
            // A server that is away may come back.
            _ => {}
        }
    }
}

async fn accept(listener: TcpListener, port: Port) -> anyhow::Result<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = room.clone().acquire_owned().await.context("the semaphore")?;
        let (client, _) = listener.accept().await.context("accepting a connection")?;
        let port = port.clone();
        tokio::spawn(async move {
            if let Err(e) = forward(client, &port).await {
                outcome::note(&format!("dsec: a connection failed: {e:#}"));
            }
            drop(place);
        });
    }
}

async fn forward(mut client: TcpStream, port: &Port) -> anyhow::Result<()> {
    client.set_nodelay(true)?;
    let mut inside = port.connect().await?;
    tokio::io::copy_bidirectional(&mut client, &mut inside).await?;
    Ok(())
}
