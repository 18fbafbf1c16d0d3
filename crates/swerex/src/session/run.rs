//! `run_in_session`: a command for bash, and what came of it.

use api::{exec::ExecInfo, limit};
use axum::{body::Body, response::Response};
use http::StatusCode;
use tokio::time::{Duration, Instant, timeout_at};

use super::{
    expect::{Expect, Hit, Watch},
    find, interactive, interrupt, line,
    mark::{Kind, Nonce},
    places::Place,
    syntax,
    terminal::Terminal,
};
use crate::{
    call::{self, Call},
    execute::prefixed,
    fault::{Exception, Fault, answer},
    python::repr,
    wire::{Action, BashAction, Check, Observation, check_name, deadline, shown},
};

/// Quoted, it is at most four times as long, and bash reads it byte by byte.
const COMMAND_BYTES_MAX: usize = 1 << 20;
/// For bash to read a line and print its prompt, when it is known to wait for one.
pub(super) const PROMPT_TIME: Duration = Duration::from_secs(1);
/// How often a prompt that is not the command's is answered with a question for its status.
const QUESTIONS_MAX: usize = 3;

const _: () = assert!(COMMAND_BYTES_MAX < limit::STDIN_INLINE_BYTES_MAX);

pub(crate) async fn serve(call: Call, body: Body) -> Result<Response, Fault> {
    let observation = match call::json(body).await? {
        Action::Interrupt(action) => interrupt::run(&call, &action).await?,
        Action::Bash(action) => bash(&call, &action).await?,
    };
    Ok(answer(StatusCode::OK, &observation))
}

async fn bash(call: &Call, action: &BashAction) -> Result<Observation, Fault> {
    check_name(&action.session)?;
    if action.command.contains('\0') {
        return Err(Fault::raised(Exception::Value, "embedded null byte"));
    }
    if action.command.len() > COMMAND_BYTES_MAX {
        return Err(Fault::too_large(format!("command: over {COMMAND_BYTES_MAX} bytes; upload a file")));
    }
    if action.is_interactive_command && action.is_interactive_quit {
        return Err(Fault::invalid("is_interactive_quit: not together with is_interactive_command"));
    }
    let expect = Expect::of(&action.expect)?;
    let exec = find::one(&call.chronus, &action.session).await?;
    let interactive = action.is_interactive_command || action.is_interactive_quit;
    if !interactive {
        syntax::check(&call.chronus, &action.command).await?;
    }
    let place = call.face.places.of(&call.id, &action.session);
    let deadline = deadline(action.timeout);
    let _turn = timeout_at(deadline, place.turn.lock()).await.map_err(|_| late(action))?;
    let mut session = Session::open(call, &action.session, exec, &place).await?;
    if interactive {
        return interactive::run(&mut session, action, &expect, deadline).await;
    }
    let observation = normal(&mut session, action, &expect, deadline).await?;
    match (action.check, observation.exit_code) {
        (Check::Raise, Some(code)) if code != 0 => {
            let message = format!(
                "Command {} failed with exit code {code}. Here is the output:\n{}",
                repr(&action.command),
                repr(&observation.output)
            );
            Err(Fault::raised(Exception::NonZeroExitCode, prefixed(&action.error_msg, message)))
        }
        _ => Ok(observation),
    }
}

pub(super) fn late(action: &BashAction) -> Fault {
    let (timeout, command) = (shown(action.timeout), repr(&action.command));
    let message = format!("timeout after {timeout} seconds while running command {command}");
    Fault::raised(Exception::CommandTimeout, message)
}

/// A session for the time of one request.
pub(super) struct Session<'a> {
    pub(super) terminal: Terminal,
    exec: ExecInfo,
    place: &'a Place,
}

impl<'a> Session<'a> {
    pub(super) async fn open(
        call: &Call,
        name: &str,
        exec: ExecInfo,
        place: &'a Place,
    ) -> Result<Self, Fault> {
        // Its length of now: others may have gone on while we waited for our turn.
        let exec = call.chronus.exec_inspect(exec.exec_id).await?;
        let terminal = Terminal::open(&call.chronus, &exec, place.hint()).await?;
        Ok(Self { terminal: terminal.ok_or_else(|| find::none(name))?, exec, place })
    }

    pub(super) fn of(terminal: Terminal, exec: ExecInfo, place: &'a Place) -> Self {
        Self { terminal, exec, place }
    }

    /// All before this byte was told.
    pub(super) fn note(&self, index: usize) {
        self.place.note(&self.exec.exec_id, self.terminal.text.offset_of(index));
    }

    /// Says so in the log too, where bash has its prompt. Gives the output that is told by that; None where there is no
    /// bash.
    pub(super) async fn take(&mut self, first: &str) -> Result<Option<String>, Fault> {
        let nonce = Nonce::new();
        let mut watch = Watch::new(&self.terminal);
        self.terminal.send(line::taken_after(first, nonce));
        let deadline = Instant::now() + PROMPT_TIME;
        let Some(taken) = watch.mark_of(&mut self.terminal, Kind::Taken, nonce, deadline).await? else {
            return Ok(None);
        };
        self.note(taken.at.end);
        let output = self.terminal.text.text(0, taken.at.start);
        // The next request is not to see this prompt.
        watch.mark_of(&mut self.terminal, Kind::Prompt, nonce, deadline).await?;
        Ok(Some(output))
    }
}

/// The command between its marks. A prompt that is not its own (it was interrupted, or began a shell inside the shell)
/// is asked for the status.
async fn normal(
    session: &mut Session<'_>,
    action: &BashAction,
    expect: &Expect,
    deadline: Instant,
) -> Result<Observation, Fault> {
    if session.terminal.busy {
        // What an earlier request has not waited for. Its output is told with ours, as with theirs; but a line that is
        // sent before it ends could be read by it.
        let mut watch = Watch::new(&session.terminal);
        let none = Expect::default();
        if matches!(watch.next(&mut session.terminal, &none, deadline).await?, Hit::Late) {
            return Err(late(action));
        }
    }
    let nonce = Nonce::new();
    let mut watch = Watch::new(&session.terminal);
    session.terminal.send(line::command(nonce, &action.command));
    if watch.mark_of(&mut session.terminal, Kind::Started, nonce, deadline).await?.is_none() {
        return Err(late(action));
    }
    let mut questions = 0;
    loop {
        match watch.next(&mut session.terminal, expect, deadline).await? {
            Hit::Prompt(mark) if mark.nonce == nonce => {
                let output = session.terminal.text.text(0, mark.at.start);
                let status = (action.check != Check::Ignore).then_some(mark.status);
                session.note(mark.at.end);
                let output = session.take("").await?.unwrap_or(output);
                return Ok(Observation::new(output, status, super::PROMPT.into()));
            }
            Hit::Prompt(_) if questions < QUESTIONS_MAX => {
                questions += 1;
                session.terminal.send(line::status(nonce));
            }
            Hit::Prompt(_) => {}
            Hit::Expected { pattern, at } => {
                return expected(session, action, watch, nonce, (pattern, at)).await;
            }
            Hit::Late => return Err(late(action)),
        }
    }
}

/// A word of the caller's came before the command has ended. Where it ends soon, its status is told as well.
async fn expected(
    session: &mut Session<'_>,
    action: &BashAction,
    mut watch: Watch,
    nonce: Nonce,
    (pattern, at): (String, std::ops::Range<usize>),
) -> Result<Observation, Fault> {
    let output = session.terminal.text.text(0, at.start);
    session.note(at.end);
    if action.check == Check::Ignore {
        return Ok(Observation::new(output, None, pattern));
    }
    let from = session.terminal.text.offset_of(at.end);
    let soon = Instant::now() + PROMPT_TIME;
    let Some(mark) = watch.mark_of(&mut session.terminal, Kind::Prompt, nonce, soon).await? else {
        return match action.check {
            Check::Raise => Err(Fault::raised(Exception::NoExitCode, "timeout while getting exit code")),
            _ => Ok(Observation::new(output, None, pattern)),
        };
    };
    let text = &session.terminal.text;
    let rest = text.text(text.index_of(from).min(mark.at.start), mark.at.start);
    session.take("").await?;
    let output = output + &rest;
    Ok(Observation::new(output, Some(mark.status), pattern))
}
