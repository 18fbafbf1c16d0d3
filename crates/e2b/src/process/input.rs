//! What clients send to a command that runs: input, its end, a terminal's size. Each comes by a request of its own, so
//! each attaches to the exec for a moment.

use api::{
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, ExecInfo},
    frame::{ClientFrame, ServerFrame},
    limit::FRAME_BYTES_MAX,
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use serde_json::json;

use super::{pid, wire};
use crate::{
    connect::{self, Messages},
    fault::Fault,
    inside::Inside,
};

pub(super) async fn send(call: Inside, body: Body) -> Result<Response, Fault> {
    let deadline = connect::deadline(&call.headers)?;
    let request: wire::SendInput = connect::unary(&call.headers, body).await?;
    let exec = pid::find_live(&*call.chronus, &request.process).await?;
    let bytes = bytes_for(&exec, request.input)?;
    let feeding = async {
        let mut feed = Feed::to(&*call.chronus, &exec).await?;
        feed.bytes(bytes).await?;
        feed.flush().await
    };
    tokio::select! {
        fed = feeding => fed?,
        () = connect::until(deadline) => return Err(Fault::late("the command does not read its input")),
    }
    Ok(connect::answer(&json!({})))
}

/// Input in order, over one request.
pub(super) async fn stream(call: Inside, body: Body) -> Result<Response, Fault> {
    let deadline = connect::deadline(&call.headers)?;
    let messages = Messages::new(&call.headers, body)?;
    tokio::select! {
        fed = stream_all(&*call.chronus, messages) => fed?,
        () = connect::until(deadline) => return Err(Fault::late("the time given to this stream is over")),
    }
    Ok(connect::answer_in_stream(&json!({})))
}

async fn stream_all(chronus: &dyn Chronus, mut messages: Messages) -> Result<(), Fault> {
    let first = messages.next::<wire::StreamInput>().await?;
    let Some(wire::StreamInput::Start(start)) = first else {
        return Err(Fault::invalid("body: the first message must be `start`"));
    };
    let exec = pid::find_live(chronus, &start.process).await?;
    let mut feed = Feed::to(chronus, &exec).await?;
    while let Some(message) = messages.next::<wire::StreamInput>().await? {
        match message {
            wire::StreamInput::Data(data) => feed.bytes(bytes_for(&exec, data.input)?).await?,
            wire::StreamInput::Keepalive(_) => {}
            wire::StreamInput::Start(_) => return Err(Fault::invalid("body: `start` comes once")),
        }
    }
    feed.flush().await
}

pub(super) async fn close(call: Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::OfProcess = connect::unary(&call.headers, body).await?;
    let exec = pid::find_live(&*call.chronus, &request.process).await?;
    if exec.pty {
        return Err(Fault::precondition("a terminal's input is not closed; send it the byte 4"));
    }
    let mut feed = Feed::to(&*call.chronus, &exec).await?;
    feed.frame(ClientFrame::StdinClose).await?;
    feed.flush().await?;
    Ok(connect::answer(&json!({})))
}

pub(super) async fn update(call: Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Update = connect::unary(&call.headers, body).await?;
    let exec = pid::find_live(&*call.chronus, &request.process).await?;
    if let Some(pty) = request.pty {
        if !exec.pty {
            return Err(Fault::precondition("the process has no terminal"));
        }
        let mut feed = Feed::to(&*call.chronus, &exec).await?;
        feed.frame(ClientFrame::Resize(pty.size())).await?;
        feed.flush().await?;
    }
    Ok(connect::answer(&json!({})))
}

fn bytes_for(exec: &ExecInfo, input: wire::Input) -> Result<Bytes, Fault> {
    match (exec.pty, input.stdin, input.pty) {
        (false, Some(bytes), None) | (true, None, Some(bytes)) => Ok(bytes),
        (false, None, Some(_)) => Err(Fault::precondition("the process has no terminal")),
        (true, Some(_), None) => Err(Fault::precondition("the process has a terminal: send `pty`")),
        _ => Err(Fault::invalid("input: expected one of `stdin` and `pty`")),
    }
}

/// A client that only sends. What comes out meanwhile is thrown away, or the command would wait for us to read it.
struct Feed(ExecStream);

impl Feed {
    async fn to(chronus: &dyn Chronus, exec: &ExecInfo) -> Result<Self, Fault> {
        let now = AttachQuery { stdout_offset: exec.stdout_bytes, stderr_offset: exec.stderr_bytes };
        Ok(Self(chronus.exec_attach(exec.exec_id.clone(), now).await?))
    }

    async fn bytes(&mut self, mut bytes: Bytes) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let part = bytes.split_to(bytes.len().min(FRAME_BYTES_MAX));
            self.frame(ClientFrame::Stdin(part)).await?;
        }
        Ok(())
    }

    async fn frame(&mut self, frame: ClientFrame) -> Result<(), Fault> {
        let ExecStream { input, output, .. } = &mut self.0;
        tokio::select! {
            sent = input.send(frame) => sent.map_err(|_| ended()),
            () = skip_to_end(output) => Err(ended()),
        }
    }

    /// Until all frames are on their way to the command, so that the next request's come after them: an acknowledgement
    /// means nothing to the edge, but it is taken only when what was before it has been handed on.
    async fn flush(mut self) -> Result<(), Fault> {
        self.frame(ClientFrame::Ack { stdout: 0, stderr: 0 }).await?;
        let ExecStream { input, output, .. } = &mut self.0;
        tokio::select! {
            // An error is an exec that ended, with its input read or not: it was sent.
            _ = input.reserve_many(input.max_capacity()) => Ok(()),
            () = skip_to_end(output) => Ok(()),
        }
    }
}

async fn skip_to_end(output: &mut tokio::sync::mpsc::Receiver<ServerFrame>) {
    while output.recv().await.is_some() {}
}

fn ended() -> Fault {
    Fault::not_found("the process has ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{ExecId, exec::Command};

    #[test]
    fn input_is_of_the_kind_that_the_process_has() {
        let exec = |pty| ExecInfo {
            exec_id: ExecId::new(),
            command: Command::Argv(vec!["x".into()]),
            started_ms: 0,
            exit: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            pty,
        };
        let input = |stdin: Option<&'static [u8]>, pty: Option<&'static [u8]>| wire::Input {
            stdin: stdin.map(Bytes::from_static),
            pty: pty.map(Bytes::from_static),
        };
        assert_eq!(bytes_for(&exec(false), input(Some(b"a"), None)).unwrap(), "a");
        assert_eq!(bytes_for(&exec(true), input(None, Some(b"a"))).unwrap(), "a");
        assert!(bytes_for(&exec(true), input(Some(b"a"), None)).is_err());
        assert!(bytes_for(&exec(false), input(None, Some(b"a"))).is_err());
        assert!(bytes_for(&exec(false), input(None, None)).is_err());
    }
}
