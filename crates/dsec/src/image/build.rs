//! build: an image of a Dockerfile, each step in a sandbox.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use libdsec::{Build, BuildEvent, Client, Network, Scrub, limit};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum NetworkArg {
    /// Loopback only
    None,
    /// Out by NAT, nothing in
    Egress,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
FROM names an image of the node; FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, LABEL and EXPOSE are understood.
Each step that writes is a layer, cached on the node until `dsec image prune`. What the steps write comes on
stderr, the image on stdout. Ctrl-C stops the step's sandbox; no image is named before all steps are done.

Examples:
  dsec build -t app:1 .
  dsec build -t app -f docker/Dockerfile --build-arg VERSION=2 --network egress ./project
  dsec build -t app --skip CMD --skip ENTRYPOINT --exclude '/**/answers/**' --caches .")]
pub(crate) struct Args {
    /// The directory that COPY and ADD take from; .dockerignore there says what not
    context: PathBuf,
    /// Default: Dockerfile in the context
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Of the image: NAME or NAME:VERSION; what has that name loses it
    #[arg(long, short, value_name = "NAME[:VERSION]")]
    tag: Option<String>,
    /// The value of an ARG; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    build_arg: Vec<(String, String)>,
    /// What RUNs may reach
    #[arg(long, value_enum, default_value_t = NetworkArg::None)]
    network: NetworkArg,
    /// Run every step, though it is cached
    #[arg(long)]
    no_cache: bool,
    /// Leave an instruction out: CMD, ENTRYPOINT, HEALTHCHECK, STOPSIGNAL, VOLUME, MAINTAINER; may be repeated
    #[arg(long, value_name = "INSTRUCTION")]
    skip: Vec<String>,
    /// Most memory of a step, e.g. 512M or 2G
    #[arg(long, short, value_name = "SIZE", value_parser = units::parse_size, default_value = "512M", help_heading = "Limits")]
    memory: u64,
    /// Most CPU of a step, in cores, e.g. 0.5 or 2
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpus, default_value = "1", help_heading = "Limits")]
    cpus: u32,
    /// Most disk that a step may write, e.g. 10G
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "10G", help_heading = "Limits")]
    disk: u64,
    /// The longest that a RUN may take, e.g. 30m
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, default_value = "1h", help_heading = "Limits")]
    timeout: Duration,
    /// Leave out of every layer what matches; may be repeated
    #[arg(long, value_name = "PATTERN", help_heading = "Left out of layers")]
    exclude: Vec<String>,
    /// Histories of shells, editors and clients of databases
    #[arg(long, help_heading = "Left out of layers")]
    histories: bool,
    /// Caches, and what is in /tmp and /var/tmp
    #[arg(long, help_heading = "Left out of layers")]
    caches: bool,
}

impl Args {
    fn into_build(self) -> Build {
        Build {
            dockerfile: self.file,
            tag: self.tag,
            arguments: self.build_arg.into_iter().collect(),
            network: match self.network {
                NetworkArg::None => Network::None,
                NetworkArg::Egress => Network::Egress,
            },
            memory_bytes_max: self.memory,
            cpu_millis_max: self.cpus,
            disk_bytes_max: self.disk,
            timeout: self.timeout,
            skip: self.skip.iter().map(|word| word.to_ascii_uppercase()).collect::<BTreeSet<_>>(),
            scrub: Scrub {
                exclude: self.exclude,
                shell_history: self.histories,
                caches: self.caches,
                ..Scrub::default()
            },
            no_cache: self.no_cache,
            ..Build::new(self.context)
        }
    }
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let build = args.into_build();
    let client = Client::from_env()?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let by = Arc::new(AtomicU8::new(0));
    let told = by.clone();
    let stopped = async move {
        let number = tokio::select! {
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
        };
        told.store(number, Ordering::SeqCst);
    };
    let built = client.build(&build, show, stopped).await;
    if let (number @ 1.., Err(error)) = (by.load(Ordering::SeqCst), &built) {
        outcome::note(&format!("dsec: {}", error.message));
        return Ok(128 + number);
    }
    let built = built?;
    let image = &built.image;
    if json {
        print::json(&serde_json::json!({
            "image": image, "steps_run": built.steps_run, "steps_cached": built.steps_cached,
        }))?;
    } else {
        let (layers, size) = (image.layers.len(), units::size(image.size_bytes));
        print::line(format_args!(
            "{}:{}  {layers} layers, {size}  {}",
            image.name, image.version, image.digest
        ))?;
    }
    Ok(0)
}

/// Progress, on stderr, whose reader may leave.
fn show(event: BuildEvent) {
    match event {
        BuildEvent::Step { number, total, text, .. } => {
            let text: String = print::plain(&text).chars().take(limit::NAME_BYTES_MAX).collect();
            outcome::note(&format!("#{number}/{total} {text}"));
        }
        BuildEvent::Cached { number } => outcome::note(&format!("#{number} CACHED")),
        BuildEvent::Stdout(bytes) | BuildEvent::Stderr(bytes) => {
            let mut stderr = std::io::stderr().lock();
            // A person's terminal is not driven by what runs inside.
            let _ = match stderr.is_terminal() {
                true => stderr.write_all(printable(&bytes).as_bytes()),
                false => stderr.write_all(&bytes),
            };
        }
        BuildEvent::Layer { number, layer, size_bytes, scrubbed_count } => {
            let left_out = match scrubbed_count {
                0 => String::new(),
                count => format!(", {count} paths left out"),
            };
            let digest: String = layer.trim_start_matches("blake3:").chars().take(12).collect();
            outcome::note(&format!("#{number} layer {digest}, {}{left_out}", units::size(size_bytes)));
        }
        BuildEvent::Note(text) => outcome::note(&format!("note: {}", print::plain(&text))),
    }
}

/// Text with its line ends and tabs; no other control characters.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() && !"\n\r\t".contains(c) { '\u{fffd}' } else { c }).collect()
}
