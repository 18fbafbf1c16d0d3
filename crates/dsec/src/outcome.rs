//! How a run of this tool ends: an exit code, and on an error one line on stderr.
//!
//! With `--json` the line is `{"error": {"code", "message", "request_id"?}}`.

use std::{io::Write, process::ExitCode};

use libdsec::{Error, Exit, ExitReason};

use crate::print;

/// The platform or this tool failed; never the command's own code... unless the command chose 125 too.
pub(crate) const PLATFORM: u8 = 125;
/// `--timeout` ended the command.
pub(crate) const TIMEOUT: u8 = 124;

/// The code to exit with.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why this tool gives up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The platform's answer.
    Api(Error),
    /// Something of this machine.
    Local(anyhow::Error),
    /// The reader of our output left (`| head`); nobody is there to be told.
    OutputClosed,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Api(e)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        match e.downcast::<Error>() {
            Ok(e) => Self::Api(e),
            Err(e) => Self::Local(e),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::BrokenPipe { Self::OutputClosed } else { Self::Local(e.into()) }
    }
}

/// A command's own code as ours; `timeout` is told apart from a code that the command chose.
pub(crate) fn of_exit(exit: &Exit) -> u8 {
    match exit.reason {
        ExitReason::Timeout => TIMEOUT,
        // Not the command's own end, and no signal of its either.
        ExitReason::SandboxGone => PLATFORM,
        _ => u8::try_from(exit.code & 0xff).unwrap_or(PLATFORM),
    }
}

/// What a person should be told of an end that was not the command's own doing.
pub(crate) fn remark(exit: &Exit) -> Option<String> {
    let after = crate::units::duration_ms(exit.duration_ms);
    match exit.reason {
        ExitReason::Timeout => {
            Some(format!("dsec: the command's timeout ran out after {after}; it was killed"))
        }
        ExitReason::OomKilled => Some("dsec: killed at the sandbox's memory limit".into()),
        ExitReason::SandboxGone => Some("error: sandbox_gone: the sandbox ended under the command".into()),
        ExitReason::Exited | ExitReason::Signal | ExitReason::NotStarted => None,
    }
}

/// Reports and converts.
pub(crate) fn exit_code(outcome: Outcome, json: bool) -> ExitCode {
    let failure = match outcome {
        Ok(code) => return code.into(),
        // As a shell shows a death by SIGPIPE.
        Err(Failure::OutputClosed) => return 141.into(),
        Err(failure) => failure,
    };
    report(&failure, json);
    PLATFORM.into()
}

/// One line on stderr.
pub(crate) fn report(failure: &Failure, json: bool) {
    let line = if json { in_json(failure) } else { in_text(failure) };
    // With stderr gone the exit code alone must do.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Does one thing to each name; what fails is told and the rest goes on. `verb` is its word in JSON: `{"removed": name}`.
pub(crate) async fn each(
    names: &[String],
    verb: &str,
    json: bool,
    act: impl AsyncFn(&str) -> libdsec::Result<()>,
) -> Outcome {
    let mut failed = false;
    for name in names {
        match act(name).await {
            Ok(()) if json => print::json(&serde_json::json!({ verb: name }))?,
            Ok(()) => print::line(print::plain(name))?,
            Err(e) => {
                failed = true;
                report(&e.into(), json);
            }
        }
    }
    Ok(if failed { PLATFORM } else { 0 })
}

/// A line on stderr that is no error: what a person should know.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn in_text(failure: &Failure) -> String {
    match failure {
        Failure::Api(Error { code, message, request_id, .. }) => {
            let request = request_id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            format!("error: {}: {message}{request}", code.as_str())
        }
        Failure::Local(e) => format!("error: {e:#}"),
        Failure::OutputClosed => "error: the output was closed".into(),
    }
}

fn in_json(failure: &Failure) -> String {
    let error = match failure {
        Failure::Api(e) => serde_json::json!(e),
        Failure::Local(e) => serde_json::json!({"code": "local", "message": format!("{e:#}")}),
        Failure::OutputClosed => serde_json::json!({"code": "local", "message": "the output was closed"}),
    };
    serde_json::json!({ "error": error }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libdsec::Code;

    fn exit(code: i32, reason: ExitReason) -> Exit {
        Exit { code, reason, signal: None, duration_ms: 2000 }
    }

    #[test]
    fn codes_are_the_commands_own_but_for_a_timeout() {
        assert_eq!(of_exit(&exit(3, ExitReason::Exited)), 3);
        assert_eq!(of_exit(&exit(143, ExitReason::Signal)), 143);
        assert_eq!(of_exit(&exit(137, ExitReason::OomKilled)), 137);
        assert_eq!(of_exit(&exit(137, ExitReason::Timeout)), TIMEOUT);
        assert_eq!(of_exit(&exit(137, ExitReason::SandboxGone)), PLATFORM);
        assert!(remark(&exit(137, ExitReason::Timeout)).unwrap().contains("2 s"));
        assert_eq!(remark(&exit(1, ExitReason::Exited)), None);
    }

    #[test]
    fn errors_read_as_promised() {
        let request: libdsec::RequestId = libdsec::RequestId::new();
        let mut e = Error::new(Code::NotFound, "no sandbox is named `x`");
        assert_eq!(in_text(&e.clone().into()), "error: not_found: no sandbox is named `x`");
        e.request_id = Some(request.clone());
        assert_eq!(
            in_text(&e.clone().into()),
            format!("error: not_found: no sandbox is named `x` ({request})")
        );
        let json: serde_json::Value = serde_json::from_str(&in_json(&e.into())).unwrap();
        assert_eq!(json["error"]["code"], "not_found");
    }
}
