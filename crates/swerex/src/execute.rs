//! `execute`: a command apart from any session, as `subprocess.run` runs it in their server; with us it is an exec.
//!
//! Two things are better than there: a timeout kills all that the command started, and a process left in the background
//! with the output open does not hold the answer back.

use api::{
    Code,
    exec::{Command as Run, ExecRequest, ExecResult, ExitReason, Output},
};
use axum::{body::Body, response::Response};
use http::StatusCode;

use crate::{
    call::{self, Call},
    fault::{Exception, Fault, answer},
    python::{backslashreplace, repr, repr_list},
    wire::{Command, CommandDone, Words, shown, span},
};

/// Of each stream; of more, head and tail are told.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 8 << 20;

pub(crate) async fn serve(call: Call, body: Body) -> Result<Response, Fault> {
    let command: Command = call::json(body).await?;
    let mut request = request(&command)?;
    request.idempotency_key = call.idempotency_key();
    request.validate()?;
    let stream = call.chronus.exec(request).await.map_err(|error| match error.code {
        Code::NotFound | Code::PermissionDenied => {
            Fault::of_file(error, command.cwd.as_deref().unwrap_or_default())
        }
        _ => error.into(),
    })?;
    let result = rpc::collect(stream, OUTPUT_BYTES_MAX).await?;
    let done = outcome(&command, result)?;
    Ok(answer(StatusCode::OK, &done))
}

fn request(command: &Command) -> Result<ExecRequest, Fault> {
    if has_nul(command) {
        return Err(Fault::raised(Exception::Value, "embedded null byte"));
    }
    let mut request = ExecRequest::new(run(command));
    request.cwd.clone_from(&command.cwd);
    request.timeout_ms =
        command.timeout.map(|s| u64::try_from(span(s).as_millis()).unwrap_or(u64::MAX).max(1));
    Ok(request)
}

/// What `subprocess` makes of the words. Their `env` is the whole environment, ours goes over the sandbox's: so
/// `env -i`. Both outputs in one, in order, takes one pipe: so a shell that joins them and gives way.
fn run(command: &Command) -> Run {
    let plain = command.env.is_none() && !command.merge_output_streams;
    let words = match (&command.command, command.shell) {
        // Of any length, as a list is not.
        (Words::Text(text), true) if plain => return Run::Shell(text.clone()),
        (Words::Text(text), true) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
        (Words::Text(text), false) => vec![text.clone()],
        (Words::List(list), true) => {
            ["/bin/sh", "-c"].map(String::from).into_iter().chain(list.iter().cloned()).collect()
        }
        (Words::List(list), false) => list.clone(),
    };
    let mut argv: Vec<String> = Vec::new();
    if command.merge_output_streams {
        argv.extend(["/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"].map(String::from));
    }
    if let Some(env) = &command.env {
        argv.extend(["/usr/bin/env", "-i"].map(String::from));
        argv.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
    }
    argv.extend(words);
    Run::Argv(argv)
}

fn has_nul(command: &Command) -> bool {
    let mut words = match &command.command {
        Words::Text(text) => vec![text],
        Words::List(list) => list.iter().collect(),
    };
    words.extend(command.env.iter().flatten().flat_map(|(name, value)| [name, value]));
    words.extend(command.cwd.iter());
    words.iter().any(|word| word.contains('\0'))
}

fn outcome(command: &Command, result: ExecResult) -> Result<CommandDone, Fault> {
    let exit = result.exit.ok_or_else(|| api::Error::internal("the command has no exit"))?;
    let (stdout, stderr) = (text(&result.stdout), text(&result.stderr));
    let exit_code = match exit.reason {
        ExitReason::Exited => exit.code,
        // As Python has it.
        ExitReason::Signal | ExitReason::OomKilled => -exit.signal.unwrap_or(9),
        ExitReason::Timeout => {
            let message = format!("Timeout ({}s) exceeded while running command", shown(command.timeout));
            return Err(Fault::raised(Exception::CommandTimeout, message));
        }
        ExitReason::NotStarted => return Err(not_started(command, exit.code)),
        ExitReason::SandboxGone => {
            return Err(api::Error::new(Code::SandboxGone, "the sandbox ended under the command").into());
        }
    };
    if command.check && exit_code != 0 {
        let words = match &command.command {
            Words::Text(text) => repr(text),
            Words::List(list) => repr_list(list),
        };
        let message = format!(
            "Command {words} failed with exit code {exit_code}. Stdout:\n{}\nStderr:\n{}",
            repr(&stdout),
            repr(&stderr)
        );
        return Err(Fault::raised(Exception::NonZeroExitCode, prefixed(&command.error_msg, message)));
    }
    Ok(CommandDone { stdout, stderr, exit_code })
}

fn not_started(command: &Command, code: i32) -> Fault {
    let program = match &command.command {
        Words::Text(text) => text,
        Words::List(list) => list.first().map_or("", String::as_str),
    };
    let code = if code == 126 { Code::PermissionDenied } else { Code::NotFound };
    Fault::of_file(api::Error::new(code, "the command could not be started"), program)
}

/// The caller's words before ours.
pub(crate) fn prefixed(error_msg: &str, message: String) -> String {
    if error_msg.is_empty() { message } else { format!("{error_msg}: {message}") }
}

fn text(output: &Output) -> String {
    let bytes = &output.data.0[..];
    if !output.truncated {
        return backslashreplace(bytes);
    }
    let (head, tail) = bytes.split_at((output.dropped_at as usize).min(bytes.len()));
    format!("{}{}{}", backslashreplace(head), hole(output.bytes_dropped), backslashreplace(tail))
}

/// What stands where output was left out.
pub(crate) fn hole(bytes: u64) -> String {
    format!("\n[... {bytes} bytes left out by DSec ...]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(json: &str) -> Run {
        run(&serde_json::from_str(json).unwrap())
    }

    fn words(text: &str) -> Run {
        Run::Argv(text.split('|').map(str::to_owned).collect())
    }

    #[test]
    fn words_as_subprocess_takes_them() {
        assert_eq!(argv(r#"{"command":"a b","shell":true}"#), Run::Shell("a b".into()));
        assert_eq!(argv(r#"{"command":"a b"}"#), words("a b"));
        assert_eq!(argv(r#"{"command":["a","b"]}"#), words("a|b"));
        assert_eq!(argv(r#"{"command":["a","b"],"shell":true}"#), words("/bin/sh|-c|a|b"));
        assert_eq!(
            argv(r#"{"command":"x","shell":true,"env":{"A":"1"},"merge_output_streams":true}"#),
            words("/bin/sh|-c|exec \"$@\" 2>&1|sh|/usr/bin/env|-i|A=1|/bin/sh|-c|x")
        );
    }
}
