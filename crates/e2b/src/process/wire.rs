//! Messages of `process.Process`, as JSON.

use std::collections::BTreeMap;

use api::exec::{Command, ExecInfo, PtySize};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::pid;
use crate::{connect::base64_bytes, fault::Fault};

#[derive(Debug, Deserialize)]
pub(crate) struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    pub(super) process: Config,
    #[serde(default)]
    pub(super) pty: Option<Pty>,
    #[serde(default)]
    pub(super) tag: Option<String>,
    #[serde(default)]
    pub(super) stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    pub(super) envs: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Size {
    cols: u16,
    rows: u16,
}

impl Pty {
    pub(super) fn size(&self) -> PtySize {
        match &self.size {
            Some(size) if size.cols > 0 && size.rows > 0 => PtySize { rows: size.rows, cols: size.cols },
            _ => PtySize::default(),
        }
    }
}

/// Which process. Their `tag` has no native form.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Selector {
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfProcess {
    pub(super) process: Selector,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Update {
    pub(super) process: Selector,
    #[serde(default)]
    pub(super) pty: Option<Pty>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendInput {
    pub(super) process: Selector,
    pub(super) input: Input,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Input {
    #[serde(deserialize_with = "base64_bytes")]
    pub(super) stdin: Option<Bytes>,
    #[serde(deserialize_with = "base64_bytes")]
    pub(super) pty: Option<Bytes>,
}

/// One of its fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StreamInput {
    Start(OfProcess),
    Data(Data),
    Keepalive(Nothing),
}

#[derive(Debug, Deserialize)]
pub(super) struct Data {
    pub(super) input: Input,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendSignal {
    pub(super) process: Selector,
    #[serde(default)]
    signal: Value,
}

impl SendSignal {
    /// By its name or its number, as JSON of an enumeration may be.
    pub(super) fn signal(&self) -> Result<i32, Fault> {
        match (self.signal.as_str(), self.signal.as_i64()) {
            (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(15),
            (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(9),
            _ => Err(Fault::invalid("signal: expected SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
        }
    }
}

/// An exec as their list shows it. Environment and working directory of an exec are not recorded.
pub(super) fn process_info(exec: &ExecInfo) -> Value {
    let (cmd, args) = match &exec.command {
        Command::Argv(argv) => {
            (argv.first().cloned().unwrap_or_default(), argv.get(1..).unwrap_or_default().to_vec())
        }
        Command::Shell(text) => ("/bin/sh".to_owned(), vec!["-c".to_owned(), text.clone()]),
    };
    json!({ "pid": pid::of(&exec.exec_id), "config": { "cmd": cmd, "args": args } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_read_and_what_is_unknown_is_refused() {
        let start: Start = serde_json::from_value(json!({
            "process": { "cmd": "/bin/bash", "args": ["-l", "-c", "true"], "envs": { "A": "b" }, "cwd": "/" },
            "stdin": false
        }))
        .unwrap();
        assert_eq!(
            (start.process.cmd.as_str(), start.process.args.len(), start.stdin),
            ("/bin/bash", 3, Some(false))
        );
        let wrong = json!({ "process": { "cmd": "x", "cgroup": "y" } });
        assert!(serde_json::from_value::<Start>(wrong).unwrap_err().to_string().contains("cgroup"));
    }

    #[test]
    fn sizes_signals_and_inputs() {
        let pty: Pty = serde_json::from_value(json!({ "size": { "cols": 100, "rows": 30 } })).unwrap();
        assert_eq!(pty.size(), PtySize { rows: 30, cols: 100 });
        assert_eq!(Pty::default().size(), PtySize::default());
        let signal = |s: Value| {
            serde_json::from_value::<SendSignal>(json!({ "process": { "pid": 1 }, "signal": s }))
                .unwrap()
                .signal()
        };
        assert_eq!(signal(json!("SIGNAL_SIGKILL")).unwrap(), 9);
        assert_eq!(signal(json!(15)).unwrap(), 15);
        assert!(signal(json!("SIGNAL_SIGHUP")).is_err() && signal(Value::Null).is_err());
        let data: StreamInput =
            serde_json::from_value(json!({ "data": { "input": { "stdin": "aGk=" } } })).unwrap();
        assert!(matches!(data, StreamInput::Data(d) if d.input.stdin.as_deref() == Some(b"hi")));
    }
}
