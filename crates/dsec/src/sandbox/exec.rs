//! exec: runs a command in a sandbox as if it ran here.

use std::time::Duration;

use libdsec::{Client, Exec, Sandbox};

use super::attach::{self, Join, OnSignal};
use crate::{outcome::Outcome, print, terminal, units};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The exit status is the command's own: 128 + N where signal N ended it, 127 where there is no such command,
124 where --timeout ended it. 125 is an error of DSec, told on stderr.

Ctrl-C goes to the command; a second one leaves it running. A dropped connection is made again.
With --json the output is collected (head and tail, 8 MiB each stream) and printed with the exit as one object.

Examples:
  dsec exec work -- ls -l /
  dsec exec work --sh 'cd /src && make 2>&1 | tail'
  dsec exec -it work -- bash
  tar c . | dsec exec -i work -- tar x -C /src
  dsec exec --timeout 30s work -- pytest
  id=$(dsec exec --detach work -- ./server) && dsec logs work $id --follow")]
pub(crate) struct Args {
    #[command(flatten)]
    how: How,
    /// a name, UID or UID:GID
    #[arg(long, short)]
    user: Option<String>,
    /// Working directory
    #[arg(long, short = 'w', value_name = "DIR", visible_alias = "workdir")]
    cwd: Option<String>,
    /// Environment, over the sandbox's; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// Print the exec's id when it has started, and leave it
    #[arg(long, short, conflicts_with_all = ["stdin", "tty"])]
    detach: bool,
    /// A second exec with the same key is answered with the first one's run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// An id or a name
    sandbox: String,
    #[command(flatten)]
    what: What,
}

/// How a command is joined to this terminal; shared with run.
#[derive(clap::Args, Debug)]
pub(crate) struct How {
    /// Send our standard input to the command; without it the command reads end-of-file
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Give the command a terminal; with one here, our keys go to it
    #[arg(long, short)]
    tty: bool,
    /// Kill all that the command started when this runs out, e.g. 30s
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
    timeout: Option<Duration>,
    /// A text for the sandbox's /bin/sh, instead of an argument vector
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    sh: Option<String>,
}

/// The argument vector; shared with run.
#[derive(clap::Args, Debug)]
pub(crate) struct What {
    /// The command and its arguments; nothing parses them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        required_unless_present = "sh",
        conflicts_with = "sh"
    )]
    argv: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let sandbox = Client::from_env()?.get(&args.sandbox).await?;
    let mut exec = args.how.command(&sandbox, args.what).envs(args.env);
    if let Some(user) = args.user {
        exec = exec.user(user);
    }
    if let Some(cwd) = args.cwd {
        exec = exec.cwd(cwd);
    }
    if let Some(key) = args.idempotency_key {
        exec = exec.idempotency_key(key);
    }
    if args.detach {
        let exec_id = exec.detach().await?;
        if json {
            print::json(&serde_json::json!({"sandbox": sandbox.id(), "exec_id": exec_id}))?;
        } else {
            print::line(exec_id)?;
        }
        return Ok(0);
    }
    args.how.join(exec, json, OnSignal::Forward).await
}

impl How {
    /// The command, with the terminal, input and timeout asked for.
    pub(crate) fn command(&self, sandbox: &Sandbox, what: What) -> Exec {
        let mut exec = match &self.sh {
            Some(text) => sandbox.sh(text),
            None => sandbox.exec(what.argv),
        };
        if self.takes_input() {
            exec = exec.stdin_stream();
        }
        if self.tty {
            let (rows, cols) = terminal::size().unwrap_or((24, 80));
            exec = exec.pty(rows, cols);
            if let Ok(term) = std::env::var("TERM") {
                exec = exec.env("TERM", term);
            }
        }
        if let Some(timeout) = self.timeout {
            exec = exec.timeout(timeout);
        }
        exec
    }

    fn takes_input(&self) -> bool {
        self.stdin || self.tty && terminal::stdin_is_terminal()
    }

    /// Starts it and stays until it ends.
    pub(crate) async fn join(&self, exec: Exec, json: bool, on_signal: OnSignal) -> Outcome {
        let process = exec.spawn().await?;
        attach::join(process, Join { stdin: self.takes_input(), pty: self.tty, json, on_signal }).await
    }
}
