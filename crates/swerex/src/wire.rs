//! Their messages, as their models of Python define them. What they ignore, a field that is not known, is refused here:
//! a typing error must not pass for a default.

use std::collections::BTreeMap;

use api::limit;
use serde::{Deserialize, Serialize};
use tokio::time::{Duration, Instant};

use crate::fault::Fault;

/// Of a session's name; it is kept in the exec's command.
const NAME_BYTES_MAX: usize = 256;
const RETRIES_MAX: u32 = 100;

fn default_name() -> String {
    "default".into()
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionType {
    #[default]
    Bash,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    #[serde(default)]
    pub(crate) startup_source: Vec<String>,
    #[serde(default = "default_name")]
    pub(crate) session: String,
    #[serde(default, rename = "session_type")]
    _session_type: SessionType,
    #[serde(default = "one")]
    pub(crate) startup_timeout: f64,
}

fn one() -> f64 {
    1.0
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseSession {
    #[serde(default = "default_name")]
    pub(crate) session: String,
    #[serde(default, rename = "session_type")]
    _session_type: SessionType,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Check {
    Silent,
    #[default]
    Raise,
    Ignore,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "action_type")]
pub(crate) enum Action {
    #[serde(rename = "bash")]
    Bash(BashAction),
    #[serde(rename = "bash_interrupt")]
    Interrupt(Interrupt),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashAction {
    pub(crate) command: String,
    #[serde(default = "default_name")]
    pub(crate) session: String,
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    #[serde(default)]
    pub(crate) is_interactive_command: bool,
    #[serde(default)]
    pub(crate) is_interactive_quit: bool,
    #[serde(default)]
    pub(crate) check: Check,
    #[serde(default)]
    pub(crate) error_msg: String,
    #[serde(default)]
    pub(crate) expect: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interrupt {
    #[serde(default = "default_name")]
    pub(crate) session: String,
    #[serde(default = "a_fifth")]
    pub(crate) timeout: f64,
    #[serde(default = "three")]
    pub(crate) n_retry: u32,
    #[serde(default)]
    pub(crate) expect: Vec<String>,
}

fn a_fifth() -> f64 {
    0.2
}
fn three() -> u32 {
    3
}

impl Interrupt {
    pub(crate) fn validate(&self) -> Result<(), Fault> {
        if self.n_retry > RETRIES_MAX {
            return Err(Fault::invalid(format!("n_retry: at most {RETRIES_MAX}")));
        }
        Ok(())
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Created {
    pub(crate) output: String,
    pub(crate) session_type: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct Observation {
    pub(crate) output: String,
    pub(crate) exit_code: Option<i32>,
    pub(crate) failure_reason: &'static str,
    pub(crate) expect_string: String,
    pub(crate) session_type: &'static str,
}

impl Observation {
    pub(crate) fn new(output: String, exit_code: Option<i32>, expect_string: String) -> Self {
        Self { output, exit_code, failure_reason: "", expect_string, session_type: "bash" }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    Text(String),
    List(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    pub(crate) command: Words,
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    #[serde(default)]
    pub(crate) shell: bool,
    #[serde(default)]
    pub(crate) check: bool,
    #[serde(default)]
    pub(crate) error_msg: String,
    #[serde(default)]
    pub(crate) env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    #[serde(default)]
    pub(crate) merge_output_streams: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct CommandDone {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit_code: i32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) encoding: Option<String>,
    #[serde(default)]
    pub(crate) errors: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    pub(crate) content: String,
    pub(crate) path: String,
}

/// A name that can be kept. Faults: with what is wrong.
pub(crate) fn check_name(name: &str) -> Result<(), Fault> {
    if name.len() > NAME_BYTES_MAX || name.contains('\0') {
        return Err(Fault::invalid(format!("session: at most {NAME_BYTES_MAX} bytes, and no NUL")));
    }
    Ok(())
}

/// Their seconds. No sandbox lives longer than the bound.
pub(crate) fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX).min(longest())
}

/// When a command has run out of its time. None is the end of the sandbox, which ends every exec.
pub(crate) fn deadline(seconds: Option<f64>) -> Instant {
    Instant::now() + seconds.map_or_else(longest, span)
}

fn longest() -> Duration {
    Duration::from_millis(limit::TTL_MS_MAX)
}

/// A number of seconds as Python writes a float, or `None`.
pub(crate) fn shown(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "None".to_owned(), |seconds| format!("{seconds:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_defaults() {
        let create: CreateSession = serde_json::from_str("{}").unwrap();
        assert_eq!((create.session.as_str(), create.startup_timeout), ("default", 1.0));
        let run = r#"{"command":"x","action_type":"bash","session":"s","timeout":3,"check":"silent","expect":["a"]}"#;
        let Action::Bash(run) = serde_json::from_str(run).unwrap() else { panic!() };
        assert_eq!((run.check, run.timeout, run.session.as_str()), (Check::Silent, Some(3.0), "s"));
        let Action::Interrupt(stop) = serde_json::from_str(r#"{"action_type":"bash_interrupt"}"#).unwrap()
        else {
            panic!()
        };
        assert_eq!((stop.timeout, stop.n_retry), (0.2, 3));
    }

    #[test]
    fn what_is_not_theirs_is_refused() {
        for bad in [
            r#"{"command":"x"}"#,
            r#"{"command":"x","action_type":"zsh"}"#,
            r#"{"command":1,"action_type":"bash"}"#,
            r#"{"command":"x","action_type":"bash","sesion":"s"}"#,
            r#"{"command":"x","action_type":"bash","check":"loud"}"#,
        ] {
            assert!(serde_json::from_str::<Action>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<CreateSession>(r#"{"session_type":"zsh"}"#).is_err());
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(span(-1.0), Duration::ZERO);
        assert_eq!(span(1e300), longest());
        assert_eq!(
            (shown(Some(10.0)), shown(Some(0.1)), shown(None)),
            ("10.0".into(), "0.1".into(), "None".into())
        );
    }
}
