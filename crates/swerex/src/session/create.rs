//! `create_session`: bash on a terminal of its own, its startup files read.

use std::sync::Arc;

use api::{
    Code, Error,
    arrow::Chronus,
    exec::{ExecInfo, SignalRequest},
};
use axum::{body::Body, response::Response};
use http::StatusCode;
use tokio::time::{Duration, Instant, timeout};

use super::{
    expect::Watch,
    find, line,
    mark::{Kind, Nonce},
    places::Place,
    run::Session,
    terminal::Terminal,
};
use crate::{
    call::{self, Call},
    fault::{Exception, Fault, answer},
    wire::{CreateSession, Created, check_name, span},
};

/// Of one sandbox; each is a shell.
const SESSIONS_MAX: usize = 64;
/// For the terminal, bash and its own startup files; the client's timeout is for the client's files.
const SHELL_TIME_MAX: Duration = Duration::from_secs(30);
const TURN_TIME_MAX: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;

pub(crate) async fn serve(call: Call, body: Body) -> Result<Response, Fault> {
    let request: CreateSession = call::json(body).await?;
    check_name(&request.session)?;
    if request.startup_source.iter().any(|path| path.contains('\0')) {
        return Err(Fault::raised(Exception::Value, "embedded null byte"));
    }
    let place = call.face.places.of(&call.id, &request.session);
    let _turn = timeout(TURN_TIME_MAX, place.turn.lock())
        .await
        .map_err(|_| Error::new(Code::DeadlineExceeded, "another request holds this session"))?;
    make_room(&call.chronus, &request.session).await?;
    let stream = call.chronus.exec(find::request(&request.session)).await?;
    let exec = call.chronus.exec_inspect(stream.exec_id.clone()).await?;
    let started = start(Terminal::of(stream, 0), exec.clone(), &place, &request).await;
    if started.is_err() {
        end(&call.chronus, &exec).await;
    }
    let output = started?;
    Ok(answer(StatusCode::OK, &Created { output, session_type: "bash" }))
}

/// Faults: `SessionExistsError`, too many. One that never was whole (its server was killed, its client left) goes.
async fn make_room(chronus: &Arc<dyn Chronus>, name: &str) -> Result<(), Fault> {
    let sessions = find::all(chronus).await?;
    if let Some(exec) = sessions.get(name) {
        if Terminal::open(chronus, exec, None).await?.is_some() {
            return Err(Fault::raised(Exception::SessionExists, format!("session {name} already exists")));
        }
        end(chronus, exec).await;
    } else if sessions.len() >= SESSIONS_MAX {
        let message = format!("a sandbox has at most {SESSIONS_MAX} sessions");
        return Err(Error::new(Code::QuotaExceeded, message).into());
    }
    Ok(())
}

async fn end(chronus: &Arc<dyn Chronus>, exec: &ExecInfo) {
    // It may have ended by itself.
    let _ = chronus.exec_signal(exec.exec_id.clone(), SignalRequest { signal: SIGKILL, tree: true }).await;
}

/// Gives what the startup files said, bash's own and the client's.
async fn start(
    terminal: Terminal,
    exec: ExecInfo,
    place: &Place,
    request: &CreateSession,
) -> Result<String, Fault> {
    let mut session = Session::of(terminal, exec, place);
    let mut watch = Watch::from_the_start();
    let deadline = Instant::now() + SHELL_TIME_MAX;
    let terminal = &mut session.terminal;
    let ready = watch.mark_of(terminal, Kind::Ready, Nonce::READY, deadline).await?.ok_or_else(late)?;
    let nonce = Nonce::new();
    terminal.send(line::startup(nonce, &request.startup_source));
    let begun = watch.mark_of(terminal, Kind::Started, nonce, deadline).await?.ok_or_else(late)?;
    let deadline = Instant::now() + span(request.startup_timeout);
    let done = watch.mark_of(terminal, Kind::Prompt, nonce, deadline).await?.ok_or_else(late)?;
    // Behind the last line of bash's own files stands the prompt that they made.
    let own = &terminal.text.bytes()[ready.at.end..begun.at.start];
    let lines = own.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let mut output = terminal.text.text(ready.at.end, ready.at.end + lines);
    output.push_str(&terminal.text.text(begun.at.end, done.at.start));
    session.take("").await?.map(|_| output).ok_or_else(late)
}

fn late() -> Fault {
    Fault::raised(Exception::Timeout, "Timeout exceeded. The session's startup has not ended in time.")
}
