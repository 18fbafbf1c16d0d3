//! One run of a command in a fake sandbox, with the same promises as aether's: output is held until it is
//! acknowledged, a full buffer stops the command, a detach changes nothing, an attach replays what is held.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::{
    ExecId,
    arrow::{ExecStream, FRAMES_IN_FLIGHT},
    exec::{AttachQuery, ExecInfo, ExecRequest, Exit, ExitReason, PtySize, Stdin},
    frame::{ClientFrame, ServerFrame, Stream},
    limit,
};
use bytes::Bytes;
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc, watch},
    time::Instant,
};

use super::{
    lock,
    script::{self, Context, End},
};

/// What a stream holds: bytes from `base` on.
#[derive(Default)]
struct Held {
    base: u64,
    bytes: VecDeque<u8>,
}

impl Held {
    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
    fn acknowledge(&mut self, upto: u64) {
        let count = upto.min(self.end()).saturating_sub(self.base);
        self.bytes.drain(..count as usize);
        self.base += count;
    }
    fn frame(&self, stream: Stream, from: u64) -> Option<ServerFrame> {
        if from < self.base {
            return Some(ServerFrame::Dropped { stream, offset: from, bytes: self.base - from });
        }
        let skip = (from - self.base) as usize;
        let data: Bytes = self.bytes.iter().skip(skip).take(64 << 10).copied().collect();
        (!data.is_empty()).then_some(ServerFrame::Output { stream, offset: from, data })
    }
}

struct State {
    held: [Held; 2],
    exit: Option<Exit>,
    signal: Option<i32>,
    /// The sandbox died: no exit will ever come.
    dead: bool,
    size: PtySize,
    /// Attached streams of an older number end.
    generation: u64,
    /// Up to where clients were sent.
    sent: [u64; 2],
    /// A client's input waits for room, and its acknowledgements behind it.
    stuck: bool,
}

impl State {
    /// As aether does: acknowledgements that are stuck behind input must not stop the command for ever.
    fn acknowledge_sent(&mut self) {
        let sent = self.sent;
        self.held.iter_mut().zip(sent).for_each(|(held, upto)| held.acknowledge(upto));
    }
}

/// The run, shared by the command, the attached clients and the agent.
pub(super) struct Process {
    pub(super) id: ExecId,
    pub(super) request: ExecRequest,
    started_ms: u64,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    input: mpsc::Sender<Option<Bytes>>,
    input_end: AsyncMutex<mpsc::Receiver<Option<Bytes>>>,
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Process {
    pub(super) fn new(request: ExecRequest) -> Self {
        let (input, input_end) = mpsc::channel(FRAMES_IN_FLIGHT);
        match &request.stdin {
            // The channel is empty and has room for two: neither can fail.
            Stdin::None => drop(input.try_send(None)),
            Stdin::Data(data) => {
                drop(input.try_send(Some(data.0.clone())));
                drop(input.try_send(None));
            }
            Stdin::Stream => {}
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            id: ExecId::new(),
            started_ms: now.as_millis() as u64,
            state: Mutex::new(State {
                held: Default::default(),
                exit: None,
                signal: None,
                dead: false,
                size: request.pty.unwrap_or_default(),
                generation: 0,
                sent: [0; 2],
                stuck: false,
            }),
            request,
            changed: watch::Sender::new(()),
            input,
            input_end: AsyncMutex::new(input_end),
        }
    }

    /// Runs the command to its end.
    pub(super) async fn run(self: Arc<Self>, context: Context) {
        let started = Instant::now();
        let timeout = async {
            match self.request.timeout_ms {
                Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                None => std::future::pending().await,
            }
        };
        let (code, reason, signal) = tokio::select! {
            end = script::run(&self.request.command, &context, &self) => match end {
                End::Code(code) => (code, ExitReason::Exited, None),
                End::Unknown => (127, ExitReason::NotStarted, None),
            },
            () = timeout => (137, ExitReason::Timeout, None),
            signal = self.until(|s| if s.dead { Some(None) } else { s.signal.map(Some) }) => match signal {
                Some(signal) => (128 + signal, ExitReason::Signal, Some(signal)),
                None => return,
            },
        };
        let duration_ms = started.elapsed().as_millis() as u64;
        self.change(|s| s.exit = Some(Exit { code, reason, signal, duration_ms }));
    }

    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = act(&mut lock(&self.state));
        self.changed.send_replace(());
        result
    }

    async fn until<T>(&self, mut test: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = test(&mut lock(&self.state)) {
                return found;
            }
            // The sender lives in `self`: this cannot fail.
            let _ = changed.changed().await;
        }
    }

    /// Writes as a process does: waits while the agent's buffer is full.
    pub(super) async fn write(&self, stream: Stream, mut data: &[u8]) {
        while !data.is_empty() {
            let taken = self
                .until(|s| {
                    let held = &mut s.held[index(stream)];
                    let room = limit::AETHER_BUFFER_BYTES.saturating_sub(held.bytes.len());
                    let count = room.min(data.len());
                    held.bytes.extend(&data[..count]);
                    (count > 0).then_some(count)
                })
                .await;
            self.changed.send_replace(());
            data = &data[taken..];
        }
    }

    /// Reads standard input; None is its end.
    pub(super) async fn read(&self) -> Option<Bytes> {
        let mut input = self.input_end.lock().await;
        let data = input.recv().await.flatten();
        if data.is_none() {
            input.close();
        }
        data
    }

    pub(super) fn size(&self) -> PtySize {
        lock(&self.state).size
    }
    pub(super) fn signal(&self, signal: i32) {
        self.change(|s| s.signal = Some(signal));
    }
    /// The sandbox ends under it.
    pub(super) fn end(&self) {
        self.change(|s| s.dead = true);
    }
    pub(super) fn cut_streams(&self) {
        self.change(|s| s.generation += 1);
    }
    /// The agent lets go of what nobody has acknowledged.
    pub(super) fn lose_held(&self) {
        self.change(|s| s.held.iter_mut().for_each(|held| held.acknowledge(held.end())));
    }
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).exit.is_some()
    }
    pub(super) fn bytes_held(&self) -> u64 {
        lock(&self.state).held.iter().map(|h| h.bytes.len() as u64).sum()
    }

    pub(super) fn info(&self) -> ExecInfo {
        let state = lock(&self.state);
        ExecInfo {
            exec_id: self.id.clone(),
            command: self.request.command.clone(),
            started_ms: self.started_ms,
            exit: state.exit,
            stdout_bytes: state.held[0].end(),
            stderr_bytes: state.held[1].end(),
            pty: self.request.pty.is_some(),
        }
    }

    pub(super) fn attach(self: &Arc<Self>, from: AttachQuery, tasks: &tokio::runtime::Handle) -> ExecStream {
        let (input, frames) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (sink, output) = mpsc::channel(FRAMES_IN_FLIGHT);
        tasks.spawn(self.clone().serve_input(frames));
        tasks.spawn(self.clone().serve_output(from, sink));
        ExecStream { exec_id: self.id.clone(), input, output }
    }

    async fn serve_input(self: Arc<Self>, mut frames: mpsc::Receiver<ClientFrame>) {
        while let Some(frame) = frames.recv().await {
            match frame {
                ClientFrame::Stdin(data) => self.feed(Some(data)).await,
                ClientFrame::StdinClose => self.feed(None).await,
                ClientFrame::Resize(size) => self.change(|s| s.size = size),
                ClientFrame::Signal(signal) => self.signal(signal),
                ClientFrame::Ack { stdout, stderr } => self.change(|s| {
                    s.held[0].acknowledge(stdout);
                    s.held[1].acknowledge(stderr);
                }),
            }
        }
    }

    async fn feed(&self, data: Option<Bytes>) {
        let Err(mpsc::error::TrySendError::Full(data)) = self.input.try_send(data) else { return };
        self.change(|s| {
            s.stuck = true;
            s.acknowledge_sent();
        });
        // A closed input means that the process reads no more: as with a pipe, the bytes are lost.
        let _ = self.input.send(data).await;
        self.change(|s| s.stuck = false);
    }

    async fn serve_output(self: Arc<Self>, from: AttachQuery, sink: mpsc::Sender<ServerFrame>) {
        let mut at = [from.stdout_offset, from.stderr_offset];
        let generation = lock(&self.state).generation;
        if sink.send(ServerFrame::Started(self.id.clone())).await.is_err() {
            return;
        }
        loop {
            let next = self.until(|s| {
                if s.dead || s.generation != generation {
                    return Some(None);
                }
                let out = s.held[0].frame(Stream::Stdout, at[0]);
                let frame = out.or_else(|| s.held[1].frame(Stream::Stderr, at[1]));
                frame.or(s.exit.map(ServerFrame::Exit)).map(Some)
            });
            let frame = tokio::select! { next = next => next, () = sink.closed() => return };
            let Some(frame) = frame else { return };
            let last = matches!(frame, ServerFrame::Exit(_));
            match &frame {
                ServerFrame::Output { stream, data, .. } => at[index(*stream)] += data.len() as u64,
                ServerFrame::Dropped { stream, bytes, .. } => at[index(*stream)] += bytes,
                _ => {}
            }
            if sink.send(frame).await.is_err() || last {
                return;
            }
            self.change(|s| {
                s.sent = [s.sent[0].max(at[0]), s.sent[1].max(at[1])];
                if s.stuck {
                    s.acknowledge_sent();
                }
            });
        }
    }
}
