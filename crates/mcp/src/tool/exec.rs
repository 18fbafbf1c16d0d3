//! exec: a command, waited for or left in the background.

use std::{collections::BTreeMap, time::Duration};

use libdsec::{Error, Exit, Result, Sandbox};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CHANGES, Call, Hints, Verb, cancelled, within_bounds};
use crate::{limit, text};

pub(super) struct Exec;

#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string for /bin/sh, or an array of strings")]
enum Command {
    /// A text for /bin/sh -c.
    Shell(String),
    /// A program and its arguments; nothing parses them.
    Argv(Vec<String>),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// A string is run by /bin/sh -c; an array is a program and its arguments, which nothing parses.
    command: Command,
    /// The directory to run in; the sandbox's own unless told otherwise.
    #[serde(default)]
    cwd: Option<String>,
    /// Environment, over the sandbox's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Run as this user: a name, UID or UID:GID.
    #[serde(default)]
    user: Option<String>,
    /// The command's standard input; without it the command reads end-of-file.
    #[serde(default)]
    stdin: Option<String>,
    /// Seconds after which the command and all that it started is killed. 50 unless told otherwise, at most 3600; in
    /// the background there is none unless told otherwise.
    #[serde(default)]
    timeout_s: Option<u64>,
    /// Start it and answer at once with its exec_id; exec_output reads what it writes, exec_kill ends it.
    #[serde(default)]
    background: bool,
    /// How many characters of stdout and stderr together to answer with; 30000 unless told otherwise.
    #[serde(default)]
    max_output_chars: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    /// For exec_output and exec_kill.
    exec_id: String,
    /// It runs in the background.
    running: bool,
    #[serde(flatten)]
    ended: Option<Ended>,
    stdout: String,
    stderr: String,
    /// Something of stdout or stderr is left out, in the middle, where it says so.
    truncated: bool,
}

/// How a command ended.
#[derive(Serialize, JsonSchema)]
pub(super) struct Ended {
    /// The command's own; 128 + N where signal N ended it; 127 where there is no such command.
    exit_code: i32,
    /// exited, signal, timeout, oom_killed (the sandbox's memory limit), not_started or sandbox_gone.
    reason: String,
    duration_ms: u64,
}

impl Ended {
    pub(super) fn of(exit: &Exit) -> Self {
        let reason = serde_json::to_value(exit.reason).ok();
        Self {
            exit_code: exit.code,
            reason: reason.as_ref().and_then(|r| r.as_str()).unwrap_or("unknown").to_owned(),
            duration_ms: exit.duration_ms,
        }
    }
}

impl Args {
    fn timeout(&self) -> Result<Option<Duration>> {
        let max = if self.background { limit::BACKGROUND_S_MAX } else { limit::EXEC_S_MAX };
        let asked = self.timeout_s.or((!self.background).then_some(limit::EXEC_S_DEFAULT));
        asked.map(|s| within_bounds("timeout_s", s, 1, max).map(Duration::from_secs)).transpose()
    }

    fn prepare(self, sandbox: &Sandbox, timeout: Option<Duration>) -> libdsec::Exec {
        let mut exec = match self.command {
            Command::Shell(text) => sandbox.sh(text),
            Command::Argv(argv) => sandbox.exec(argv),
        };
        exec = exec.envs(self.env);
        if let Some(cwd) = self.cwd {
            exec = exec.cwd(cwd);
        }
        if let Some(user) = self.user {
            exec = exec.user(user);
        }
        if let Some(stdin) = self.stdin {
            exec = exec.stdin(stdin);
        }
        if let Some(timeout) = timeout {
            exec = exec.timeout(timeout);
        }
        exec
    }
}

impl Verb for Exec {
    const NAME: &'static str = "exec";
    const TITLE: &'static str = "Run a command";
    const ABOUT: &'static str = "Run a command in the sandbox and wait for its end: exit code, stdout and stderr. Long output keeps its head \
        and tail. There is no terminal. Files, and processes started in the background, stay for later calls; the \
        current directory and shell variables do not. For a server or a long job use background.";
    const HINTS: Hints = Hints { open_world: true, ..CHANGES };
    const CANCEL_DROPS: bool = false;
    type Args = Args;
    type Answer = Answer;

    fn within(args: &Args) -> Duration {
        let seconds = args.timeout_s.unwrap_or(limit::EXEC_S_DEFAULT);
        let waits = if args.background { 0 } else { seconds.min(limit::EXEC_S_MAX) };
        limit::CALL_WITHIN.max(Duration::from_secs(waits) + limit::EXEC_SLACK)
    }

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let timeout = args.timeout()?;
        let chars_max = output_chars(args.max_output_chars)?;
        let background = args.background;
        let sandbox = call.sandbox().await?;
        let exec = args.prepare(&sandbox, timeout);
        if background {
            return Ok(Answer::started(exec.detach().await?.to_string()));
        }
        let process = exec.spawn().await?;
        let control = process.control();
        let output = tokio::select! {
            output = process.output_with((chars_max * limit::CHAR_BYTES_MAX) as u64) => output?,
            () = call.cancel.cancelled() => {
                // Nobody waits for it any more. Where the kill fails, its timeout ends it.
                let _ = tokio::time::timeout(limit::KILL_WITHIN, control.kill()).await;
                return Err(cancelled());
            }
        };
        let [stdout, stderr] = text::clip_both(&output.stdout, &output.stderr, chars_max);
        Ok(Answer {
            exec_id: output.exec_id.to_string(),
            running: false,
            ended: Some(Ended::of(&output.exit)),
            truncated: stdout.truncated || stderr.truncated,
            stdout: stdout.text,
            stderr: stderr.text,
        })
    }
}

impl Answer {
    fn started(exec_id: String) -> Self {
        let (stdout, stderr) = (String::new(), String::new());
        Self { exec_id, running: true, ended: None, stdout, stderr, truncated: false }
    }
}

/// The bound that a caller asked for, or the usual one.
pub(super) fn output_chars(asked: Option<u64>) -> Result<usize> {
    let chars = asked.unwrap_or(limit::OUTPUT_CHARS_DEFAULT as u64);
    let chars = within_bounds("max_output_chars", chars, 1, limit::OUTPUT_CHARS_MAX as u64)?;
    usize::try_from(chars).map_err(|e| Error::invalid(format!("max_output_chars: {e}")))
}
