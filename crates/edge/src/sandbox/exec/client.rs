//! A client attached to a run: frames from its log to the client at the client's pace, frames of the client to aether.

use std::{io, sync::Arc, time::Duration};

use api::{
    Code, Error, ExecId, Result,
    arrow::{ExecStream, FRAMES_IN_FLIGHT},
    exec::AttachQuery,
    frame::{ClientFrame, ServerFrame, Stream},
};
use tokio::sync::mpsc;

use super::{
    Input, Run,
    log::{CURSORS_MAX, Next, Reader},
};

/// Silence after which a client is told that all is well.
const ALIVE_MS: u64 = 15_000;

/// Attaches to `run` from the offsets on. Errors: `no_capacity`.
pub(crate) fn attach(run: &Arc<Run>, from: AttachQuery) -> Result<ExecStream> {
    let Some(reader) = run.log.attach(from) else {
        let message = format!("{CURSORS_MAX} clients are attached to {} already", run.id);
        return Err(Error::new(Code::NoCapacity, message).retry_after_ms(1000));
    };
    let (input, frames) = mpsc::channel(FRAMES_IN_FLIGHT);
    let (sink, output) = mpsc::channel(FRAMES_IN_FLIGHT);
    tokio::spawn(serve_output(run.id.clone(), reader, sink));
    tokio::spawn(serve_input(run.clone(), frames));
    Ok(ExecStream { exec_id: run.id.clone(), input, output })
}

async fn serve_output(id: ExecId, reader: Reader, sink: mpsc::Sender<ServerFrame>) {
    let mut grown = reader.grown();
    if sink.send(ServerFrame::Started(id.clone())).await.is_err() {
        return;
    }
    loop {
        // Seen before looked at: what comes while we look wakes us again.
        grown.borrow_and_update();
        let (frame, moved) = match reader.next() {
            Ok(Next::Wait) => {
                tokio::select! {
                    _ = grown.changed() => continue,
                    () = sink.closed() => return,
                    () = tokio::time::sleep(Duration::from_millis(ALIVE_MS)) => (ServerFrame::Alive, None),
                }
            }
            Ok(Next::Closed) => return,
            Ok(next) => match frame_of(next).await {
                Ok(frame) => frame,
                Err(error) => return fail(&id, &sink, &error).await,
            },
            Err(error) => return fail(&id, &sink, &error).await,
        };
        let last = matches!(frame, ServerFrame::Exit(_));
        if sink.send(frame).await.is_err() || last {
            return;
        }
        if let Some((stream, offset)) = moved {
            reader.advance(stream, offset);
        }
    }
}

/// The frame, and where the reader is once the client has it.
async fn frame_of(next: Next) -> io::Result<(ServerFrame, Option<(Stream, u64)>)> {
    let (stream, offset, data) = match next {
        Next::Bytes { stream, offset, data } => (stream, offset, data),
        Next::Read { stream, offset, count, spool } => {
            let read = tokio::task::spawn_blocking(move || spool.read(offset, count));
            (stream, offset, read.await.map_err(io::Error::other)??)
        }
        Next::Dropped { stream, offset, bytes } => {
            return Ok((ServerFrame::Dropped { stream, offset, bytes }, Some((stream, offset + bytes))));
        }
        Next::Exit(exit) => return Ok((ServerFrame::Exit(exit), None)),
        Next::Wait | Next::Closed => return Ok((ServerFrame::Alive, None)),
    };
    let end = offset + data.len() as u64;
    Ok((ServerFrame::Output { stream, offset, data }, Some((stream, end))))
}

async fn fail(id: &ExecId, sink: &mpsc::Sender<ServerFrame>, error: &io::Error) {
    tracing::error!(exec = %id, %error, "spool: cannot be read");
    let error = Error::internal("the recorded output of this exec cannot be read");
    // The client may have left.
    let _ = sink.send(ServerFrame::Error(error)).await;
}

async fn serve_input(run: Arc<Run>, mut frames: mpsc::Receiver<ClientFrame>) {
    while let Some(frame) = frames.recv().await {
        // Acknowledgements are between the edge and aether.
        if !matches!(frame, ClientFrame::Ack { .. }) && !relay(&run, frame).await {
            return;
        }
    }
}

/// Hands one frame to aether, over a lost connection once it is back. False: the run has ended.
async fn relay(run: &Run, mut frame: ClientFrame) -> bool {
    let mut input = run.input.subscribe();
    loop {
        let now = input.borrow_and_update().clone();
        match now {
            Input::Ended => return false,
            Input::Lost => {}
            Input::Connected(sender) => match sender.send(frame).await {
                Ok(()) => return true,
                Err(back) => frame = back.0,
            },
        }
        if input.changed().await.is_err() {
            return false;
        }
    }
}
