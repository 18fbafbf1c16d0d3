//! Running a command in a sandbox.
//!
//! An exec is a log, not a pipe: it has an id and, for each of its two streams, a byte offset. A dropped client
//! attaches again at its offsets. A disconnect never kills; a command timeout kills everything that the command
//! started; the exit is reported when the process exits, not when its pipes close.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, ExecId, Result, limit, payload::Payload, spec};

/// PATH of commands in a sandbox, where neither they nor the image name one.
pub const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to run: an argument vector (nothing parses it), or a text for `/bin/sh -c`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Command {
    Argv(Vec<String>),
    Shell(String),
}

/// Where standard input comes from. None is end-of-file at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Stdin {
    #[default]
    None,
    /// These bytes, then end-of-file.
    Data(Payload),
    /// From the attached client's frames, until it closes.
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for PtySize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// `POST .../exec`. Plain, the answer is an [`ExecResult`] when the command has ended; with
/// `Upgrade: dsec-frames` the answer is a stream of frames (see [`crate::frame`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    pub command: Command,
    /// Over the sandbox's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A name or `uid[:gid]`. Default: the sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default)]
    pub stdin: Stdin,
    /// With a terminal both outputs are one stream (stdout).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    /// Kills the whole tree of the command when it runs out. None: the sandbox's TTL alone bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Answer as soon as it has started; read it later by its id.
    #[serde(default)]
    pub detach: bool,
    /// Sent again with the same key, the recorded run is answered and nothing runs twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The most of each stream that a plain answer carries: head and tail, the middle dropped.
    #[serde(default = "default_output")]
    pub output_bytes_max: u64,
}

fn default_output() -> u64 {
    limit::EXEC_OUTPUT_BYTES_DEFAULT
}

impl ExecRequest {
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: Stdin::None,
            pty: None,
            timeout_ms: None,
            detach: false,
            idempotency_key: None,
            output_bytes_max: default_output(),
        }
    }
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }
    pub fn shell(text: impl Into<String>) -> Self {
        Self::new(Command::Shell(text.into()))
    }

    /// Errors: `invalid_argument` with the field's name.
    pub fn validate(&self) -> Result<()> {
        let parts: Vec<&str> = match &self.command {
            Command::Argv(argv) if argv.is_empty() || argv[0].is_empty() => {
                return Err(Error::invalid("command: the argument vector is empty"));
            }
            Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
            Command::Shell(text) => vec![text],
        };
        if parts.iter().any(|p| p.contains('\0')) {
            return Err(Error::invalid("command: an argument holds a NUL byte"));
        }
        let is_argv = matches!(self.command, Command::Argv(_));
        if is_argv && parts.iter().any(|p| p.len() >= limit::ARGUMENT_BYTES_MAX) {
            return Err(Error::invalid(format!(
                "command: argument too long: each is at most {} bytes; send more by stdin or a file",
                limit::ARGUMENT_BYTES_MAX - 1
            )));
        }
        let env_bytes: usize = self.env.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
        let bytes = parts.iter().map(|p| p.len() + 1).sum::<usize>() + env_bytes;
        if bytes > limit::COMMAND_BYTES_MAX {
            return Err(Error::invalid(format!(
                "command: argument too long: command and environment are {bytes} bytes, at most {}",
                limit::COMMAND_BYTES_MAX
            )));
        }
        spec::check_env(&self.env)?;
        if let Some(cwd) = &self.cwd {
            spec::check_path("cwd", cwd)?;
        }
        if let Stdin::Data(data) = &self.stdin
            && data.0.len() > limit::STDIN_INLINE_BYTES_MAX
        {
            return Err(Error::invalid(format!(
                "stdin: {} bytes inline, at most {}; stream it",
                data.0.len(),
                limit::STDIN_INLINE_BYTES_MAX
            )));
        }
        if let Some(key) = &self.idempotency_key {
            spec::check_text("idempotency_key", key)?;
        }
        if self.timeout_ms == Some(0) {
            return Err(Error::invalid("timeout_ms: 0 leaves no time to run"));
        }
        check_output_bytes(self.output_bytes_max)
    }
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// By itself, with a code.
    Exited,
    /// By a signal, its own or another's; the code is 128 + n.
    Signal,
    /// Our clock ran out; the tree was killed; the code is 137.
    Timeout,
    /// The kernel killed it at the sandbox's memory limit; the code is 137.
    OomKilled,
    /// It could not be started: code 127 (not found) or 126 (not executable), the reason on stderr.
    NotStarted,
    /// The sandbox ended under it; the code is 137.
    SandboxGone,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// As a shell gives it: the exit code, or 128 + the signal.
    pub code: i32,
    pub reason: ExitReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub duration_ms: u64,
}

/// One stream's share of a plain answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// The bytes kept: all, or head and tail.
    pub data: Payload,
    /// All that the command wrote.
    pub bytes_total: u64,
    /// Bytes left out of `data`, in its middle at `dropped_at`.
    #[serde(default)]
    pub bytes_dropped: u64,
    #[serde(default)]
    pub dropped_at: u64,
    pub truncated: bool,
}

/// The plain answer of an exec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecResult {
    pub exec_id: ExecId,
    /// None: it still runs (detached).
    pub exit: Option<Exit>,
    pub stdout: Output,
    pub stderr: Output,
}

/// What is known of an exec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecInfo {
    pub exec_id: ExecId,
    pub command: Command,
    pub started_ms: u64,
    pub exit: Option<Exit>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub pty: bool,
}

/// `GET .../execs/{exec}/attach`: from which bytes on. Absent: from the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachQuery {
    #[serde(default)]
    pub stdout_offset: u64,
    #[serde(default)]
    pub stderr_offset: u64,
}

/// `GET .../execs/{exec}/output`: an [`ExecResult`] of what is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputQuery {
    /// Answer when the command has ended.
    #[serde(default)]
    pub wait: bool,
    /// The most of each stream: head and tail, the middle dropped.
    #[serde(default = "default_output")]
    pub output_bytes_max: u64,
}

impl Default for OutputQuery {
    fn default() -> Self {
        Self { wait: false, output_bytes_max: default_output() }
    }
}

impl OutputQuery {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        check_output_bytes(self.output_bytes_max)
    }
}

fn check_output_bytes(output_bytes_max: u64) -> Result<()> {
    if output_bytes_max <= limit::EXEC_OUTPUT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "output_bytes_max: at most {}; stream for more",
        limit::EXEC_OUTPUT_BYTES_MAX
    )))
}

/// `POST .../execs/{exec}/signal`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// 1 to 64, as in signal(7).
    pub signal: i32,
    /// To everything that the command started, not to its first process alone.
    #[serde(default)]
    pub tree: bool,
}

impl SignalRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        if (1..=64).contains(&self.signal) {
            return Ok(());
        }
        Err(Error::invalid(format!("signal: {} is outside 1..=64", self.signal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argv_and_shell_are_two_shapes() {
        let argv: ExecRequest = serde_json::from_str(r#"{"command":["echo","a b"]}"#).unwrap();
        assert_eq!(argv, ExecRequest::argv(["echo", "a b"]));
        let shell: ExecRequest =
            serde_json::from_str(r#"{"command":"echo a b","stdin":{"data":"x"}}"#).unwrap();
        assert_eq!(shell.command, Command::Shell("echo a b".into()));
        assert_eq!(shell.stdin, Stdin::Data("x".into()));
        assert_eq!(serde_json::to_value(Stdin::Stream).unwrap(), "stream");
    }

    #[test]
    fn bad_requests_are_named() {
        for (field, request) in [
            ("command", ExecRequest::argv(Vec::<String>::new())),
            ("command", ExecRequest::argv([""])),
            ("command", ExecRequest::argv(["a\0b"])),
            ("command", ExecRequest::argv(["echo".into(), "x".repeat(limit::ARGUMENT_BYTES_MAX)])),
            ("command", ExecRequest::shell("x".repeat(limit::COMMAND_BYTES_MAX))),
            ("timeout_ms", ExecRequest { timeout_ms: Some(0), ..ExecRequest::shell("x") }),
            ("env", ExecRequest { env: [("".into(), "".into())].into(), ..ExecRequest::shell("x") }),
            ("cwd", ExecRequest { cwd: Some("".into()), ..ExecRequest::shell("x") }),
        ] {
            assert!(request.validate().unwrap_err().message.starts_with(field));
        }
        assert!(serde_json::from_str::<ExecRequest>(r#"{"command":"x","tty":true}"#).is_err());
        assert!(serde_json::from_str::<ExecRequest>(r#"{"command":7}"#).is_err());
    }
}
