//! A command that runs, attached. It is a log, not a pipe: when the connection drops, this attaches again at the byte
//! where it stopped, a bounded number of times, and the reader notices nothing.
//!
//! Invariants: each byte of a stream is handed out once and in order; bytes that the server no longer keeps are said
//! aloud ([`Event::Dropped`]). Input that was in flight when a connection dropped cannot be known to have arrived:
//! with a terminal that is accepted (a person types it again), without one the process ends with an error that names
//! the exec, never with silently shortened input.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use api::{
    Code, Error, ExecId, Result,
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, ExecInfo, ExecResult, Exit, PtySize, SignalRequest},
    frame::{ClientFrame, ServerFrame, Stream as OutputStream},
    limit,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use crate::{
    TextDecoder, retry,
    sandbox::exec::{Collector, ExecOutput},
};

/// Attempts to attach again after one drop, before the drop is reported.
const REATTACH_MAX: u32 = 8;
/// Drops further apart than this are told apart: each has its own attempts.
const REATTACH_CALM: Duration = Duration::from_secs(60);

/// What a running command does.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Stdout(Bytes),
    Stderr(Bytes),
    /// `bytes` at `offset` of a stream are not kept any more: the reader came too late for them.
    Dropped {
        stream: OutputStream,
        offset: u64,
        bytes: u64,
    },
    /// The last event.
    Exit(Exit),
}

/// [`Event`] as text: characters are whole, what is not UTF-8 is U+FFFD.
#[derive(Debug, Clone, PartialEq)]
pub enum TextEvent {
    Stdout(String),
    Stderr(String),
    Dropped { stream: OutputStream, offset: u64, bytes: u64 },
    Exit(Exit),
}

/// The half of a connection that sends, shared with [`StdinWriter`]s; it is exchanged when the connection is.
struct Input {
    sender: Mutex<mpsc::Sender<ClientFrame>>,
    pty: bool,
    /// The request said that input follows.
    streams: bool,
    /// Bytes of input went out by this client.
    sent: AtomicBool,
    closed: AtomicBool,
    size: Mutex<Option<PtySize>>,
}

impl Input {
    async fn send(&self, frame: ClientFrame) -> Result<()> {
        let sender = self.sender.lock().expect("no panic while it is held").clone();
        sender.send(frame).await.map_err(|_| {
            Error::new(
                Code::Conflict,
                "the command takes no input any more: it has ended, or its connection dropped",
            )
        })
    }
}

/// A running command. Dropping it detaches; the command goes on, and [`Sandbox::attach`](crate::Sandbox::attach)
/// finds it by [`Process::exec_id`].
pub struct Process {
    chronus: Arc<dyn Chronus>,
    exec_id: ExecId,
    output: mpsc::Receiver<ServerFrame>,
    input: Arc<Input>,
    /// Next byte of stdout and stderr.
    offsets: [u64; 2],
    /// Found between the frames of one answer.
    queued: VecDeque<Event>,
    exit: Option<Exit>,
    /// Attempts to attach again since the last news.
    drops: u32,
    last_drop: Option<Instant>,
    text: [TextDecoder; 2],
    queued_text: VecDeque<TextEvent>,
}

fn slot(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

impl Process {
    pub(crate) fn new(
        chronus: Arc<dyn Chronus>,
        stream: ExecStream,
        from: AttachQuery,
        stdin: StdinUse,
    ) -> Self {
        let input = Input {
            sender: Mutex::new(stream.input),
            pty: stdin.pty,
            streams: stdin.streams,
            sent: AtomicBool::new(false),
            closed: AtomicBool::new(!stdin.streams),
            size: Mutex::new(None),
        };
        Self {
            chronus,
            exec_id: stream.exec_id,
            output: stream.output,
            input: Arc::new(input),
            offsets: [from.stdout_offset, from.stderr_offset],
            queued: VecDeque::new(),
            exit: None,
            drops: 0,
            last_drop: None,
            text: Default::default(),
            queued_text: VecDeque::new(),
        }
    }

    /// To attach to it again, from this or another program.
    pub fn exec_id(&self) -> &ExecId {
        &self.exec_id
    }

    /// The next bytes of each stream: stdout, stderr. What [`Sandbox::attach`](crate::Sandbox::attach) takes.
    pub fn offsets(&self) -> AttachQuery {
        AttachQuery { stdout_offset: self.offsets[0], stderr_offset: self.offsets[1] }
    }

    /// What happens next; None after [`Event::Exit`]. A dropped connection is attached again on the way.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Ok(Some(event));
            }
            if self.exit.is_some() {
                return Ok(None);
            }
            // A peer that is silent for too long is told by rpc as a dropped connection.
            match self.output.recv().await {
                Some(frame) => self.accept(frame).await?,
                None => self.reattach(None).await?,
            }
        }
    }

    async fn accept(&mut self, frame: ServerFrame) -> Result<()> {
        match frame {
            ServerFrame::Started(_) | ServerFrame::Alive => {}
            ServerFrame::Output { stream, offset, data } => {
                self.drops = 0;
                self.take(stream, offset, data);
            }
            ServerFrame::Dropped { stream, offset, bytes } => self.gap(stream, offset.saturating_add(bytes)),
            ServerFrame::Exit(exit) => {
                self.exit = Some(exit);
                self.queued.push_back(Event::Exit(exit));
            }
            ServerFrame::Error(error) if retry::may_heal(&error) || error.code == Code::DeadlineExceeded => {
                self.reattach(Some(error)).await?
            }
            ServerFrame::Error(error) => return Err(error),
        }
        Ok(())
    }

    /// Hands out what is new of `data`; after an attach the first bytes may be known already.
    fn take(&mut self, stream: OutputStream, offset: u64, mut data: Bytes) {
        self.gap(stream, offset);
        let next = &mut self.offsets[slot(stream)];
        let known = usize::try_from(next.saturating_sub(offset)).unwrap_or(usize::MAX);
        if known >= data.len() {
            return;
        }
        let data = data.split_off(known);
        *next += data.len() as u64;
        self.queued.push_back(match stream {
            OutputStream::Stdout => Event::Stdout(data),
            OutputStream::Stderr => Event::Stderr(data),
        });
    }

    /// Says aloud what lies between the next byte and `offset`, if anything does.
    fn gap(&mut self, stream: OutputStream, offset: u64) {
        let next = &mut self.offsets[slot(stream)];
        if offset > *next {
            self.queued.push_back(Event::Dropped { stream, offset: *next, bytes: offset - *next });
            *next = offset;
        }
    }

    fn input_at_risk(&self) -> bool {
        self.input.streams && !self.input.pty && self.input.sent.load(Ordering::SeqCst)
    }

    async fn reattach(&mut self, mut cause: Option<Error>) -> Result<()> {
        if self.input_at_risk() {
            return Err(Error::new(
                Code::Conflict,
                format!(
                    "the connection dropped while input was streamed, and some of it may be lost; the command goes on as {}",
                    self.exec_id
                ),
            ));
        }
        if self.last_drop.replace(Instant::now()).is_some_and(|last| last.elapsed() > REATTACH_CALM) {
            self.drops = 0;
        }
        // Counted over answers that bring nothing new, so that a server which drops each one is left in the end.
        while self.drops < REATTACH_MAX {
            self.drops += 1;
            match self.chronus.exec_attach(self.exec_id.clone(), self.offsets()).await {
                Ok(stream) => return self.exchange(stream).await,
                Err(e) if retry::may_heal(&e) => {
                    tokio::time::sleep(retry::wait(self.drops, &e)).await;
                    cause = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        Err(cause.unwrap_or_else(|| Error::internal("the connection dropped and could not be made again")))
    }

    /// Goes on over a new connection; what the command must know of the client is told again.
    async fn exchange(&mut self, stream: ExecStream) -> Result<()> {
        tracing::debug!(exec = %self.exec_id, "attached again");
        self.output = stream.output;
        *self.input.sender.lock().expect("no panic while it is held") = stream.input;
        let size = *self.input.size.lock().expect("no panic while it is held");
        // Should this connection be gone too, `next` finds out.
        if let Some(size) = size {
            let _ = self.input.send(ClientFrame::Resize(size)).await;
        }
        if self.input.streams && self.input.closed.load(Ordering::SeqCst) {
            let _ = self.input.send(ClientFrame::StdinClose).await;
        }
        Ok(())
    }

    /// [`Process::next`] as text: a character never comes in pieces.
    pub async fn next_text(&mut self) -> Result<Option<TextEvent>> {
        loop {
            if let Some(event) = self.queued_text.pop_front() {
                return Ok(Some(event));
            }
            let Some(event) = self.next().await? else { return Ok(None) };
            match event {
                Event::Stdout(data) => {
                    push_some(&mut self.queued_text, TextEvent::Stdout, self.text[0].push(&data))
                }
                Event::Stderr(data) => {
                    push_some(&mut self.queued_text, TextEvent::Stderr, self.text[1].push(&data))
                }
                Event::Dropped { stream, offset, bytes } => {
                    self.finish_text(slot(stream));
                    self.queued_text.push_back(TextEvent::Dropped { stream, offset, bytes });
                }
                Event::Exit(exit) => {
                    self.finish_text(0);
                    self.finish_text(1);
                    self.queued_text.push_back(TextEvent::Exit(exit));
                }
            }
        }
    }

    fn finish_text(&mut self, slot: usize) {
        let wrap = if slot == 0 { TextEvent::Stdout } else { TextEvent::Stderr };
        push_some(&mut self.queued_text, wrap, self.text[slot].finish().to_owned());
    }

    /// The events as a [`Stream`](futures_core::Stream) that ends after the exit or an error.
    pub fn into_stream(self) -> api::arrow::BoxStream<Result<Event>> {
        stream::unfold(Some(self), |process| async move {
            let mut process = process?;
            match process.next().await {
                Ok(event) => event.map(|event| (Ok(event), Some(process))),
                Err(e) => Some((Err(e), None)),
            }
        })
        .boxed()
    }

    /// Waits for the end. Output that was not read is discarded.
    pub async fn wait(&mut self) -> Result<Exit> {
        loop {
            if let Some(exit) = self.exit {
                self.queued.clear();
                return Ok(exit);
            }
            self.next().await?;
        }
    }

    /// Collects what is still to come, head and tail of each stream at most `output_bytes_max` together.
    pub async fn output_with(mut self, output_bytes_max: u64) -> Result<ExecOutput> {
        let mut streams = [Collector::new(output_bytes_max), Collector::new(output_bytes_max)];
        loop {
            match self.next().await? {
                Some(Event::Stdout(data)) => streams[0].push(&data),
                Some(Event::Stderr(data)) => streams[1].push(&data),
                Some(Event::Dropped { stream, bytes, .. }) => streams[slot(stream)].skip(bytes),
                Some(Event::Exit(exit)) => {
                    let [stdout, stderr] = streams.map(Collector::finish);
                    return Ok(ExecOutput { exec_id: self.exec_id, exit, stdout, stderr });
                }
                None => return Err(Error::invalid("the exit of this process has been read already")),
            }
        }
    }

    /// Collects what `info` tells of: all of a command that has ended, what one that runs has written by then.
    pub(crate) async fn recorded(mut self, info: &ExecInfo) -> Result<ExecResult> {
        let bytes_max = limit::EXEC_OUTPUT_BYTES_DEFAULT;
        let mut streams = [Collector::new(bytes_max), Collector::new(bytes_max)];
        let exit = loop {
            let at = self.offsets();
            let all_seen = at.stdout_offset >= info.stdout_bytes && at.stderr_offset >= info.stderr_bytes;
            if info.exit.is_none() && all_seen {
                break None;
            }
            match self.next().await? {
                Some(Event::Stdout(data)) => streams[0].push(&data),
                Some(Event::Stderr(data)) => streams[1].push(&data),
                Some(Event::Dropped { stream, bytes, .. }) => streams[slot(stream)].skip(bytes),
                Some(Event::Exit(exit)) => break Some(exit),
                None => break info.exit,
            }
        };
        let [stdout, stderr] = streams.map(Collector::finish);
        Ok(ExecResult { exec_id: self.exec_id, exit, stdout, stderr })
    }

    /// Collects what is still to come.
    pub async fn output(self) -> Result<ExecOutput> {
        self.output_with(limit::EXEC_OUTPUT_BYTES_DEFAULT).await
    }

    /// A writer of its standard input, which must have been asked for with
    /// [`Exec::stdin_stream`](crate::Exec::stdin_stream) (a terminal has it always).
    pub fn stdin(&self) -> StdinWriter {
        StdinWriter { input: self.input.clone() }
    }

    /// Signals and sizes, from any task.
    pub fn control(&self) -> ProcessControl {
        ProcessControl {
            chronus: self.chronus.clone(),
            exec_id: self.exec_id.clone(),
            input: self.input.clone(),
        }
    }

    /// Tells the terminal its new size. Without a terminal it does nothing.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        self.control().resize(rows, cols).await
    }

    /// Signals the command's first process.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.control().signal(signal).await
    }

    /// SIGKILLs all that the command started.
    pub async fn kill(&self) -> Result<()> {
        self.control().kill().await
    }
}

/// How a process was asked to take input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdinUse {
    pub(crate) pty: bool,
    pub(crate) streams: bool,
}

fn push_some(queue: &mut VecDeque<TextEvent>, wrap: fn(String) -> TextEvent, text: String) {
    if !text.is_empty() {
        queue.push_back(wrap(text));
    }
}

/// Steers a command while another task reads its output.
#[derive(Clone)]
pub struct ProcessControl {
    chronus: Arc<dyn Chronus>,
    exec_id: ExecId,
    input: Arc<Input>,
}

impl ProcessControl {
    /// Tells the terminal its new size. Without a terminal it does nothing.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        let size = PtySize { rows, cols };
        *self.input.size.lock().expect("no panic while it is held") = Some(size);
        if self.input.pty {
            self.input.send(ClientFrame::Resize(size)).await?;
        }
        Ok(())
    }

    /// Signals the command's first process.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.send(SignalRequest { signal, tree: false }).await
    }

    /// Signals all that the command started.
    pub async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.send(SignalRequest { signal, tree: true }).await
    }

    /// SIGKILLs all that the command started.
    pub async fn kill(&self) -> Result<()> {
        let everything = SignalRequest { signal: 9, tree: true };
        retry::repeat(|| self.send(everything)).await
    }

    async fn send(&self, request: SignalRequest) -> Result<()> {
        request.validate()?;
        self.chronus.exec_signal(self.exec_id.clone(), request).await
    }
}

/// Writes a command's standard input, from any task. Dropping it does not close the input; [`StdinWriter::close`] does.
#[derive(Clone)]
pub struct StdinWriter {
    input: Arc<Input>,
}

impl StdinWriter {
    /// Sends all of `data`, waiting while the command does not read. Errors: `conflict` where it takes none any more.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<()> {
        let mut data: Bytes = data.into();
        if self.input.closed.load(Ordering::SeqCst) {
            return Err(Error::new(
                Code::Conflict,
                "standard input is closed, or was not asked for with stdin_stream",
            ));
        }
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(limit::FRAME_BYTES_MAX));
            self.input.sent.store(true, Ordering::SeqCst);
            self.input.send(ClientFrame::Stdin(chunk)).await?;
        }
        Ok(())
    }

    /// End-of-file; the command's output goes on. Closing twice is no error.
    pub async fn close(&self) -> Result<()> {
        if self.input.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.input.send(ClientFrame::StdinClose).await
    }
}
