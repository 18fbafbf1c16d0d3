//! The events of a command, from its start or from now on, until it ends or its client leaves.

use std::time::Duration;

use api::{
    SandboxId,
    arrow::ExecStream,
    exec::{AttachQuery, Exit, ExitReason},
    frame::{ServerFrame, Stream},
};
use axum::{body::Body, response::Response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{pid, wire};
use crate::{
    connect::{self, Ended, Sink, to_base64},
    fault::Fault,
    inside::Inside,
};

/// Of what a command that could not be started said.
const REASON_BYTES_MAX: usize = 1000;

/// A command that a client looks at.
pub(super) struct Attached {
    pub(super) id: SandboxId,
    pub(super) stream: ExecStream,
    pub(super) pty: bool,
    pub(super) period: Duration,
    pub(super) stopping: rpc::Stopping,
    /// When the client has seen enough. The command goes on.
    pub(super) deadline: Option<Instant>,
}

/// Connect: what comes from now on, as their agent gives it. One that has ended tells its end alone.
pub(super) async fn connect(call: Inside, body: Body) -> Result<Response, Fault> {
    let deadline = connect::deadline(&call.headers)?;
    let period = connect::ping_period(&call.headers);
    let request: wire::OfProcess = connect::single(&call.headers, body).await?;
    let exec = pid::find(&*call.chronus, &request.process).await?;
    let now = AttachQuery { stdout_offset: exec.stdout_bytes, stderr_offset: exec.stderr_bytes };
    let stream = call.chronus.exec_attach(exec.exec_id, now).await?;
    Ok(respond(Attached { id: call.id, stopping: call.stopping, stream, pty: exec.pty, period, deadline }))
}

pub(super) fn respond(attached: Attached) -> Response {
    let stopping = attached.stopping.clone();
    connect::stream(stopping, |sink| async move { pump(attached, &sink).await })
}

async fn pump(mut attached: Attached, sink: &Sink) -> Ended {
    let start = json!({ "start": { "pid": pid::of(&attached.stream.exec_id) } });
    sink.send(&json!({ "event": start })).await?;
    let mut said = Vec::new();
    let mut ping = tokio::time::interval(attached.period);
    ping.reset();
    loop {
        let frame = tokio::select! {
            frame = attached.stream.output.recv() => frame,
            _ = ping.tick() => {
                sink.send(&json!({ "event": { "keepalive": {} } })).await?;
                continue;
            }
            () = connect::until(attached.deadline) => {
                return Ok(Err(Fault::late("the time given to this connection is over; the command goes on")));
            }
        };
        let event = match frame {
            Some(ServerFrame::Output { stream, data, .. }) => {
                if stream == Stream::Stderr && said.len() < REASON_BYTES_MAX {
                    said.extend_from_slice(&data[..data.len().min(REASON_BYTES_MAX)]);
                }
                output(stream, attached.pty, &data)
            }
            Some(ServerFrame::Exit(exit)) => match end(&attached.id, exit, &said) {
                Ok(event) => {
                    sink.send(&json!({ "event": event })).await?;
                    return Ok(Ok(()));
                }
                Err(fault) => return Ok(Err(fault)),
            },
            Some(ServerFrame::Error(error)) => return Ok(Err(error.into())),
            Some(ServerFrame::Dropped { bytes, .. }) => {
                return Ok(Err(Fault::lost(format!("{bytes} bytes of output are not kept any more"))));
            }
            Some(ServerFrame::Started(_) | ServerFrame::Alive) => continue,
            None => {
                return Ok(Err(Fault::from(api::Error::internal("DSec is shutting down; connect again"))));
            }
        };
        sink.send(&json!({ "event": event })).await?;
    }
}

fn output(stream: Stream, pty: bool, data: &[u8]) -> Value {
    let field = match (pty, stream) {
        (true, _) => "pty",
        (false, Stream::Stdout) => "stdout",
        (false, Stream::Stderr) => "stderr",
    };
    json!({ "data": { field: to_base64(data) } })
}

/// How it ended, in their words; a fault where their clients expect one.
fn end(id: &SandboxId, exit: Exit, said: &[u8]) -> Result<Value, Fault> {
    let status = match exit.reason {
        ExitReason::Exited => format!("exit status {}", exit.code),
        ExitReason::Signal => format!("signal: {}", exit.signal.unwrap_or(exit.code - 128)),
        ExitReason::OomKilled => "out of memory: killed at the sandbox's limit".to_owned(),
        ExitReason::Timeout => return Err(Fault::late("the command ran out of its time and was killed")),
        ExitReason::SandboxGone => return Err(Fault::gone(id)),
        ExitReason::NotStarted => {
            let why = String::from_utf8_lossy(said);
            return Err(Fault::invalid(format!("the command could not be started: {}", why.trim())));
        }
    };
    let mut end =
        json!({ "exitCode": exit.code, "exited": exit.reason == ExitReason::Exited, "status": status });
    if exit.code != 0 {
        end["error"] = json!(status);
    }
    Ok(json!({ "end": end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, reason: ExitReason, signal: Option<i32>) -> Result<Value, Fault> {
        let id = "sb-e1-01h00000000000000000000000".parse().unwrap();
        end(&id, Exit { code, reason, signal, duration_ms: 1 }, b"no such file\n")
    }

    #[test]
    fn ends_in_their_words() {
        let zero = ended(0, ExitReason::Exited, None).unwrap();
        assert_eq!(zero, json!({ "end": { "exitCode": 0, "exited": true, "status": "exit status 0" } }));
        assert_eq!(ended(3, ExitReason::Exited, None).unwrap()["end"]["error"], "exit status 3");
        let killed = &ended(137, ExitReason::Signal, Some(9)).unwrap()["end"];
        assert_eq!((&killed["exitCode"], &killed["exited"]), (&json!(137), &json!(false)));
        assert_eq!(ended(137, ExitReason::Timeout, None).unwrap_err().status(), 504);
        assert_eq!(ended(137, ExitReason::SandboxGone, None).unwrap_err().status(), 502);
        let reason = ended(127, ExitReason::NotStarted, None).unwrap_err().in_stream();
        assert!(reason["message"].as_str().unwrap().ends_with("no such file"), "{reason}");
    }

    #[test]
    fn a_terminal_has_one_output() {
        assert_eq!(output(Stream::Stdout, true, b"hi"), json!({ "data": { "pty": "aGk=" } }));
        assert_eq!(output(Stream::Stderr, false, b""), json!({ "data": { "stderr": "" } }));
    }
}
