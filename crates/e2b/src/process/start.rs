//! Start: an exec that outlives its client; its timeout is the exec's, and kills all that it started.

use api::{
    Code,
    exec::{ExecRequest, Stdin},
};
use axum::{body::Body, response::Response};

use super::{attach, wire};
use crate::{connect, fault::Fault, inside::Inside};

pub(super) async fn start(call: Inside, body: Body) -> Result<Response, Fault> {
    let timeout = connect::timeout(&call.headers)?;
    let period = connect::ping_period(&call.headers);
    let start: wire::Start = connect::single(&call.headers, body).await?;
    if start.tag.is_some() {
        return Err(Fault::unsupported("tag: tags are not kept here"));
    }
    let mut request = ExecRequest::argv(std::iter::once(start.process.cmd).chain(start.process.args));
    request.env = start.process.envs;
    request.user.clone_from(&call.user);
    if let Some(cwd) = start.process.cwd.filter(|cwd| !cwd.is_empty()) {
        request.cwd = Some(call.face.in_home(&call.id, &call.chronus, call.user.as_deref(), &cwd).await?);
    }
    request.pty = start.pty.as_ref().map(wire::Pty::size);
    // Theirs is open unless it is told otherwise.
    let open = request.pty.is_some() || start.stdin.unwrap_or(true);
    request.stdin = if open { Stdin::Stream } else { Stdin::None };
    request.timeout_ms = timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX).max(1));
    let pty = request.pty.is_some();
    let stream = call.chronus.exec(request).await.map_err(|error| match error.code {
        // A directory or a user that is not there; `not_found` would be the process.
        Code::NotFound => Fault::invalid(error.message),
        _ => error.into(),
    })?;
    Ok(attach::respond(attach::Attached {
        id: call.id,
        stopping: call.stopping,
        stream,
        pty,
        period,
        deadline: None,
    }))
}
