//! A client on an exec: its log from an offset on, and the client's frames the other way. Any number at once.

use std::sync::Arc;

use api::{
    arrow::{ExecStream, FRAMES_IN_FLIGHT},
    exec::{AttachQuery, PtySize, SignalRequest},
    frame::{ClientFrame, ServerFrame, Stream},
};
use tokio::sync::mpsc;

use super::{
    Exec, feed, index,
    log::{Log, Read},
    signal,
};

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// Attaches. Needs the runtime.
pub fn attach(exec: Arc<Exec>, from: AttachQuery) -> ExecStream {
    let (input, frames_in) = mpsc::channel(FRAMES_IN_FLIGHT);
    let (frames_out, output) = mpsc::channel(FRAMES_IN_FLIGHT);
    let exec_id = exec.id.clone();
    tokio::spawn(take_input(exec.clone(), frames_in));
    tokio::spawn(send_output(exec, [from.stdout_offset, from.stderr_offset], frames_out));
    ExecStream { exec_id, input, output }
}

async fn take_input(exec: Arc<Exec>, mut frames: mpsc::Receiver<ClientFrame>) {
    while let Some(frame) = frames.recv().await {
        match frame {
            ClientFrame::Stdin(data) => feed::push(&exec, data).await,
            ClientFrame::StdinClose => feed::close(&exec),
            ClientFrame::Resize(size) => resize(&exec, size),
            ClientFrame::Signal(signal) => {
                let request = SignalRequest { signal, tree: false };
                if request.validate().is_ok() {
                    let _ = signal::signal(&exec, request);
                }
            }
            ClientFrame::Ack { stdout, stderr } => {
                let mut state = exec.state();
                let room = state.logs[0].acknowledge(stdout) | state.logs[1].acknowledge(stderr);
                drop(state);
                if room {
                    exec.room.notify_waiters();
                }
            }
        }
    }
}

fn resize(exec: &Exec, size: PtySize) {
    let terminal = exec.state().terminal.clone();
    if let Some(terminal) = terminal {
        // Gone between two lines: nobody looks at it any more.
        let _ = linux::pty::resize(terminal.get_ref(), size.rows, size.cols);
    }
}

enum Next {
    Frame(ServerFrame),
    Last(ServerFrame),
    Wait,
}

/// The next frame for a client that has seen up to `at`, and `turn`'s stream first.
fn next(exec: &Exec, at: &mut [u64; 2], turn: usize) -> Next {
    let state = exec.state();
    let mut ended = 0;
    for stream in [STREAMS[turn % 2], STREAMS[(turn + 1) % 2]] {
        let offset = &mut at[index(stream)];
        match state.logs[index(stream)].read(*offset) {
            Read::Data(data) => {
                let frame = ServerFrame::Output { stream, offset: *offset, data: data.clone() };
                *offset += data.len() as u64;
                return Next::Frame(frame);
            }
            Read::Lost(bytes) => {
                let frame = ServerFrame::Dropped { stream, offset: *offset, bytes };
                *offset += bytes;
                return Next::Frame(frame);
            }
            Read::Wait => {}
            Read::End => ended += 1,
        }
    }
    match state.exit {
        Some(exit) if ended == STREAMS.len() => Next::Last(ServerFrame::Exit(exit)),
        _ => Next::Wait,
    }
}

async fn send_output(exec: Arc<Exec>, mut at: [u64; 2], frames: mpsc::Sender<ServerFrame>) {
    for turn in 0.. {
        let notified = exec.changed.notified();
        match next(&exec, &mut at, turn) {
            Next::Frame(frame) => {
                if frames.send(frame).await.is_err() {
                    return;
                }
                note_sent(&exec, at);
            }
            Next::Last(frame) => {
                let _ = frames.send(frame).await;
                return;
            }
            Next::Wait => tokio::select! {
                () = notified => {}
                () = frames.closed() => return,
            },
        }
    }
}

fn note_sent(exec: &Exec, at: [u64; 2]) {
    let mut state = exec.state();
    state.logs.iter_mut().zip(at).for_each(|(log, offset)| log.note_sent(offset));
    if state.feed.stuck {
        state.logs.iter_mut().for_each(Log::acknowledge_sent);
        drop(state);
        exec.room.notify_waiters();
    }
}
