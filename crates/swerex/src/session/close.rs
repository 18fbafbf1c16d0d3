//! `close_session` and `close`: the terminal hangs up. What was told to live on (`nohup`, `setsid`) lives on, and the
//! sandbox does: their client closes a runtime and then stops what it runs in by other means.

use std::sync::Arc;

use api::{
    Code,
    arrow::Chronus,
    exec::{AttachQuery, ExecInfo, SignalRequest},
    frame::ServerFrame,
};
use axum::{body::Body, response::Response};
use futures_util::future::try_join_all;
use http::StatusCode;
use serde_json::json;
use tokio::time::{Duration, timeout};

use super::find;
use crate::{
    call::{self, Call},
    fault::{Fault, answer},
    wire::{CloseSession, check_name},
};

const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
/// For bash to hang up its jobs and go.
const HANGUP_TIME: Duration = Duration::from_secs(1);
const KILL_TIME: Duration = Duration::from_secs(10);

pub(crate) async fn serve(call: Call, body: Body) -> Result<Response, Fault> {
    let request: CloseSession = call::json(body).await?;
    check_name(&request.session)?;
    let exec = find::one(&call.chronus, &request.session).await?;
    hang_up(&call.chronus, exec).await?;
    Ok(answer(StatusCode::OK, &json!({ "session_type": "bash" })))
}

pub(crate) async fn all(call: Call) -> Result<Response, Fault> {
    let sessions = find::all(&call.chronus).await?;
    try_join_all(sessions.into_values().map(|exec| hang_up(&call.chronus, exec))).await?;
    Ok(answer(StatusCode::OK, &json!({})))
}

async fn hang_up(chronus: &Arc<dyn Chronus>, exec: ExecInfo) -> Result<(), Fault> {
    for (signal, time) in [(SIGHUP, HANGUP_TIME), (SIGKILL, KILL_TIME)] {
        match chronus.exec_signal(exec.exec_id.clone(), SignalRequest { signal, tree: false }).await {
            Ok(()) => {}
            // It has ended.
            Err(e) if matches!(e.code, Code::Conflict | Code::NotFound) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        if timeout(time, ended(chronus, &exec)).await.is_ok() {
            return Ok(());
        }
    }
    Err(api::Error::new(Code::DeadlineExceeded, "the session's shell does not end").into())
}

async fn ended(chronus: &Arc<dyn Chronus>, exec: &ExecInfo) {
    let end = AttachQuery { stdout_offset: exec.stdout_bytes, stderr_offset: 0 };
    let Ok(mut stream) = chronus.exec_attach(exec.exec_id.clone(), end).await else { return };
    while let Some(frame) = stream.output.recv().await {
        if matches!(frame, ServerFrame::Exit(_) | ServerFrame::Error(_)) {
            return;
        }
    }
}
