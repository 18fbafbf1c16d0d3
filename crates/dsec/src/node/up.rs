//! up: starts the server, in the foreground or, with `--detach`, as a process of its own.
//!
//! Detached: this program starts itself again in a new session with its output in `<data>/dsec.log`, waits until the
//! API answers, and leaves. Every error of the start is shown to the person who asked.

use std::{
    fs::OpenOptions,
    io::{IsTerminal, Read, Seek, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tracing_subscriber::{EnvFilter, fmt::format::FmtSpan};

use super::lock::{Holder, Lock, holder};
use crate::{
    config::{self, Config},
    outcome::Outcome,
    print, serve,
};

/// A UNIX socket's path has 107 bytes; `/run/<sandbox id>/chronus.sock` takes the rest.
const DATA_PATH_BYTES_MAX: usize = 50;
/// A first start may make a volume and a pool.
const READY_WITHIN: Duration = Duration::from_secs(60);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The server answers on 127.0.0.1:3732 and writes its URL and key to the context file, where the other commands
find them. A second `dsec up` on the same data says so and changes nothing.

Examples:
  dsec up --detach
  dsec up --data /srv/dsec --listen 127.0.0.1:8080
  dsec up --config /etc/dsec.toml

The file of --config is TOML, and each of its keys may be left out:
  data = \"/var/lib/dsec\"        listen = \"127.0.0.1:3732\"    edge = \"e1\"
  log = \"info\"                  log_json = false             log_spans = false
  aether = \"/usr/lib/dsec/aether\"                            pool_size = 8
  context = \"/root/.config/dsec/context.toml\"
  [capacity]                    memory_bytes_max = 17179869184
  memory_oversell_percent = 400 cpu_millis_max = 8000        cpu_oversell_percent = 10000
  pids_max = 4194304            sandboxes_max = 4096
  [e2b]                         default_image = \"debian\"     domain = \"sandboxes.example.org\"
  public_ports = false          templates.mine = \"debian:12\"
  [store]                       url = \"s3://bucket/prefix\" (or file:///mnt/x)
  endpoint = \"https://s3.example.org\"                        region = \"us-east-1\"
  publish = \"asked\" (or always) fetch = \"on_demand\" (or eager)
  cache_bytes_max = 17179869184 read_within_ms = 20000        prefetch = true
  trace_idle_ms = 60000")]
pub(crate) struct Args {
    /// Run in the background; return when the API answers
    #[arg(long, short)]
    detach: bool,
    /// Where everything is kept [default: /var/lib/dsec for root, else ~/.local/share/dsec]
    #[arg(long, value_name = "DIR", env = "DSEC_DATA")]
    data: Option<PathBuf>,
    /// Address of the API; port 0 is any free one [default: 127.0.0.1:3732]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A TOML file; flags go before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store that nodes share images by: file:///DIR or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", env = "DSEC_STORE")]
    store: Option<String>,
    /// What to log, e.g. info or edge=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "DSEC_LOG")]
    log: Option<String>,
    /// Log as JSON, one object a line
    #[arg(long)]
    log_json: bool,
    /// Log each span of a request when it ends, with its times; e.g. with --log debug
    #[arg(long)]
    log_spans: bool,
    /// The context file to write, for the other commands to find
    #[arg(long, value_name = "FILE", conflicts_with = "no_context")]
    context: Option<PathBuf>,
    /// Leave the caller's context file as it is
    #[arg(long)]
    no_context: bool,
    /// In a session of its own: what --detach starts
    #[arg(long, hide = true)]
    session: bool,
    /// Isolate nothing: for tests of the tool itself
    #[arg(long, hide = true)]
    fake: bool,
}

impl Args {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = self.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
        if let Some(data) = &self.data {
            config.data = data.clone();
        }
        config.listen = self.listen.unwrap_or(config.listen);
        if let Some(log) = &self.log {
            config.log = log.clone();
        }
        if let Some(store) = &self.store {
            config.store.url = store.clone();
        }
        config.log_json |= self.log_json;
        config.log_spans |= self.log_spans;
        config.fake = self.fake;
        if let Some(context) = &self.context {
            config.context = context.clone();
        }
        if self.no_context {
            config.context = PathBuf::new();
        }
        config.validated()
    }
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let mut config = args.config()?;
    let at =
        || format!("making the data directory {}", args.data.as_deref().unwrap_or(Path::new("")).display());
    std::fs::create_dir_all(&config.data).with_context(at)?;
    // Mounts are known by their real paths.
    config.data = config.data.canonicalize().with_context(at)?;
    if config.data.as_os_str().len() > DATA_PATH_BYTES_MAX {
        let path = config.data.display();
        return Err(anyhow::anyhow!(
            "data: {path} is longer than {DATA_PATH_BYTES_MAX} bytes, and the sockets below it would have no place"
        )
        .into());
    }
    if args.detach {
        let (access, pid) = start(&config, args.config.as_deref(), args.fake).await?;
        say_up(&config, &access, pid, json)?;
    } else {
        foreground(config, args.session).await?
    }
    Ok(0)
}

async fn foreground(config: Config, session: bool) -> anyhow::Result<()> {
    if session {
        // The terminal's signals do not reach a session without it.
        rustix::process::setsid().context("a session of its own")?;
    }
    // Before anything else: two servers on one directory would destroy each other's state.
    let _lock = Lock::acquire(&config.data)?;
    log_to_stderr(&config);
    // What an earlier server said of itself is not true any more, and must not be taken for us.
    let said = config::data_context(&config.data);
    match std::fs::remove_file(&said) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("removing {}", said.display()));
        }
        _ => {}
    }
    serve::run(config).await
}

fn log_to_stderr(config: &Config) {
    // The filter was checked with the rest of the configuration.
    let filter = EnvFilter::try_new(&config.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let spans = if config.log_spans { FmtSpan::CLOSE } else { FmtSpan::NONE };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(spans)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if config.log_json {
        log.json().init();
    } else {
        log.init();
    }
}

fn say_up(config: &Config, access: &libdsec::Context, pid: u32, json: bool) -> anyhow::Result<()> {
    let log = super::log::path(&config.data);
    let said = config::data_context(&config.data);
    let place = if config.context.as_os_str().is_empty() { &said } else { &config.context };
    if json {
        let up = serde_json::json!({
            "url": access.url, "pid": pid, "log": log, "context": place, "data": config.data,
        });
        print::json(&up)?;
        return Ok(());
    }
    print::line(format_args!("dsec is up: {} (pid {pid}, log {})", access.url, log.display()))?;
    print::line(format_args!("URL and key: {}", place.display()))?;
    Ok(())
}

/// Starts a server in the background and waits until it answers: where, and its process id.
pub(super) async fn start(
    config: &Config,
    file: Option<&Path>,
    fake: bool,
) -> anyhow::Result<(libdsec::Context, u32)> {
    if let Holder::Server(pid) = holder(&config.data)? {
        bail!("already running (pid {}) on {}", pid.as_raw_nonzero(), config.data.display());
    }
    let log_path = super::log::path(&config.data);
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .open(&log_path)
        .with_context(|| format!("the log {}", log_path.display()))?;
    let log_start = log.seek(SeekFrom::End(0)).context("the log")?;
    let said = config::data_context(&config.data);
    let _ = std::fs::remove_file(&said);
    let mut child = command(config, file, fake)?
        .stdin(Stdio::null())
        .stdout(Stdio::from(log.try_clone().context("the log")?))
        .stderr(Stdio::from(log.try_clone().context("the log")?))
        .spawn()
        .context("starting the server")?;
    let access = match ready(&mut child, &said).await {
        Ok(access) => access,
        Err(e) => {
            // Half a server is worse than none; it is our child, so the number is ours.
            let _ = child.kill();
            let _ = child.wait();
            return Err(e.context(tail(&mut log, log_start, &log_path)));
        }
    };
    Ok((access, child.id()))
}

/// This program again, with what was made of the flags.
fn command(config: &Config, file: Option<&Path>, fake: bool) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg("up").arg("--data").arg(&config.data).arg("--listen").arg(config.listen.to_string());
    command.arg("--log").arg(&config.log);
    if let Some(file) = file {
        command.arg("--config").arg(std::path::absolute(file).context("config")?);
    }
    if config.store.is_set() {
        command.arg("--store").arg(&config.store.url);
    }
    if config.context.as_os_str().is_empty() {
        command.arg("--no-context");
    } else {
        command.arg("--context").arg(&config.context);
    }
    let flags = [("--log-json", config.log_json), ("--log-spans", config.log_spans), ("--fake", fake)];
    for (flag, given) in flags {
        if given {
            command.arg(flag);
        }
    }
    command.arg("--session").current_dir("/");
    Ok(command)
}

async fn ready(child: &mut Child, said: &Path) -> anyhow::Result<libdsec::Context> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        if let Some(status) = child.try_wait().context("the server")? {
            bail!("the server ended at once ({status})");
        }
        // Written when it listens.
        if let Some(access) = libdsec::Context::load(said)?
            && rpc::EdgeClient::new(&access.url, Some(&access.api_key))?.health().await.is_ok()
        {
            return Ok(access);
        }
        if Instant::now() > deadline {
            bail!("the server did not answer within {} s", READY_WITHIN.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The end of what the server logged since `start`.
fn tail(log: &mut std::fs::File, start: u64, path: &Path) -> String {
    let mut text = Vec::new();
    let _ = log.seek(SeekFrom::Start(start)).and_then(|_| log.take(1 << 20).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    // Its last line is the error that this one repeats.
    let lines: Vec<&str> = text.lines().map(|line| line.strip_prefix("error: ").unwrap_or(line)).collect();
    let last = lines[lines.len().saturating_sub(10)..].join("\n");
    format!("{last}\nthe log is {}", path.display())
}
