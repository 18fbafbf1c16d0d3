//! The service `process.Process`: commands of a sandbox, which are our execs.

mod attach;
mod input;
mod pid;
mod start;
mod wire;

use api::exec::SignalRequest;
use axum::{body::Body, response::Response};
use serde_json::json;

use crate::{
    connect,
    fault::Fault,
    inside::{Inside, unknown},
};

const SIGKILL: i32 = 9;

pub(crate) async fn call(verb: &str, call: Inside, body: Body) -> Result<Response, Fault> {
    match verb {
        "Start" => start::start(call, body).await,
        "Connect" => attach::connect(call, body).await,
        "List" => list(call, body).await,
        "SendInput" => input::send(call, body).await,
        "StreamInput" => input::stream(call, body).await,
        "CloseStdin" => input::close(call, body).await,
        "Update" => input::update(call, body).await,
        "SendSignal" => signal(call, body).await,
        other => Err(unknown(other)),
    }
}

async fn list(call: Inside, body: Body) -> Result<Response, Fault> {
    let _: wire::Nothing = connect::unary(&call.headers, body).await?;
    let execs = call.chronus.exec_list().await?;
    let live = execs.iter().filter(|exec| exec.exit.is_none()).map(wire::process_info);
    Ok(connect::answer(&json!({ "processes": live.collect::<Vec<_>>() })))
}

/// SIGKILL ends all that the command started, as our timeouts do; a gentler signal is for its first process.
async fn signal(call: Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::SendSignal = connect::unary(&call.headers, body).await?;
    let signal = request.signal()?;
    let exec = pid::find_live(&*call.chronus, &request.process).await?;
    let request = SignalRequest { signal, tree: signal == SIGKILL };
    match call.chronus.exec_signal(exec.exec_id, request).await {
        Ok(()) => Ok(connect::answer(&json!({}))),
        // It ended on its own just now.
        Err(e) if matches!(e.code, api::Code::Conflict | api::Code::NotFound) => {
            Err(Fault::not_found(e.message))
        }
        Err(e) => Err(e.into()),
    }
}
