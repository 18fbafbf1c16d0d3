//! The commands that a fake sandbox knows. A shell text is split at `;` and white space; nothing is quoted.
//!
//! `true`, `false`, `echo W..`, `err W..` (to stderr), `sleep SECONDS`, `exit N`, `cat` (stdin to stdout), `wc` (counts
//! stdin), `flood N` (N bytes of [`pattern`]), `env NAME`, `pwd`, `size` (the terminal), `sh -c TEXT`.

use std::{collections::BTreeMap, time::Duration};

use api::{exec::Command, frame::Stream};
use bytes::Bytes;

use super::exec::Process;

/// Byte `offset` of what `flood` writes.
pub(super) fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// What a command is run with.
pub(super) struct Context {
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
}

/// How a script ended.
pub(super) enum End {
    Code(i32),
    /// 127: no such command.
    Unknown,
}

fn plan_lines(command: &Command) -> Vec<Vec<String>> {
    match command {
        Command::Argv(argv) => match argv.as_slice() {
            [sh, c, text] if sh == "sh" && c == "-c" => plan_lines(&Command::Shell(text.clone())),
            _ => vec![argv.clone()],
        },
        Command::Shell(text) => text
            .split(';')
            .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .filter(|words| !words.is_empty())
            .collect(),
    }
}

pub(super) async fn run(command: &Command, context: &Context, process: &Process) -> End {
    let mut last = 0;
    for words in plan_lines(command) {
        let (name, rest) = words.split_first().map_or(("", &[][..]), |(n, r)| (n.as_str(), r));
        if name == "exit" {
            return End::Code(rest.first().and_then(|n| n.parse().ok()).unwrap_or(0));
        }
        match run_one(name, rest, context, process).await {
            End::Code(code) => last = code,
            End::Unknown => return End::Unknown,
        }
    }
    End::Code(last)
}

async fn run_one(name: &str, rest: &[String], context: &Context, process: &Process) -> End {
    let number = || rest.first().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    match name {
        "true" => {}
        "false" => return End::Code(1),
        "echo" => process.write(Stream::Stdout, format!("{}\n", rest.join(" ")).as_bytes()).await,
        "err" => process.write(Stream::Stderr, format!("{}\n", rest.join(" ")).as_bytes()).await,
        "sleep" => tokio::time::sleep(Duration::from_secs_f64(number().clamp(0.0, 1e9))).await,
        "flood" => flood(number() as u64, process).await,
        "cat" => {
            while let Some(data) = process.read().await {
                process.write(Stream::Stdout, &data).await;
            }
        }
        "wc" => {
            let mut count = 0;
            while let Some(data) = process.read().await {
                count += data.len();
            }
            process.write(Stream::Stdout, format!("{count}\n").as_bytes()).await;
        }
        "env" => {
            let value = rest.first().and_then(|key| context.env.get(key));
            let Some(value) = value else { return End::Code(1) };
            process.write(Stream::Stdout, format!("{value}\n").as_bytes()).await;
        }
        "pwd" => process.write(Stream::Stdout, format!("{}\n", context.cwd).as_bytes()).await,
        "size" => {
            let size = process.size();
            process.write(Stream::Stdout, format!("{} {}\n", size.rows, size.cols).as_bytes()).await;
        }
        _ => {
            process.write(Stream::Stderr, format!("{name}: command not found\n").as_bytes()).await;
            return End::Unknown;
        }
    }
    End::Code(0)
}

async fn flood(total: u64, process: &Process) {
    const CHUNK: u64 = 64 << 10;
    let mut at = 0;
    while at < total {
        let end = (at + CHUNK).min(total);
        let data: Bytes = (at..end).map(pattern).collect();
        process.write(Stream::Stdout, &data).await;
        at = end;
    }
}
