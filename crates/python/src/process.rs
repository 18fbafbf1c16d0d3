//! A command that runs, read from several sides at once: its standard output, its standard error, all of it in order,
//! or its end alone.
//!
//! One reader reads on at a time and sorts what comes into the two streams; the others find it there. What nobody
//! takes is kept up to a bound, then the oldest goes, and that is said where it was. Nothing blocks the command: its
//! output is in the edge's log as well.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use libdsec::{Event, Exit, OutputStream, ProcessControl, StdinWriter};
use pyo3::{IntoPyObjectExt, exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes, types::PyBytes};
use tokio::sync::Mutex as AsyncMutex;

use crate::{call::Call, exec, runtime::Home};

/// Of each stream, while nobody takes it.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// What one piece costs beyond its bytes.
const PIECE_BYTES: usize = 64;

struct Shared {
    process: AsyncMutex<libdsec::Process>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    streams: [Kept; 2],
    arrived: u64,
    exit: Option<Exit>,
    exit_taken: bool,
}

/// One stream: what has come and was not taken.
#[derive(Default)]
struct Kept {
    pieces: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Bytes lost before the first piece.
    lost: u64,
    /// Where that piece came in the order of all.
    lost_at: u64,
    /// The next byte to be taken.
    offset: u64,
}

enum Piece {
    Data(Bytes),
    Lost { offset: u64, bytes: u64 },
}

impl Kept {
    fn push(&mut self, number: u64, data: Bytes) {
        self.bytes += data.len() + PIECE_BYTES;
        self.pieces.push_back((number, data));
        while self.bytes > KEPT_BYTES_MAX {
            let Some((number, oldest)) = self.pieces.pop_front() else { return };
            self.bytes -= oldest.len() + PIECE_BYTES;
            self.lose(number, oldest.len() as u64);
        }
    }

    /// `bytes` after all that is here are lost: what is here before them goes with them, so that a hole is one.
    fn gap(&mut self, number: u64, bytes: u64) {
        let here: usize = self.pieces.drain(..).map(|(_, data)| data.len()).sum();
        self.bytes = 0;
        self.lose(number, here as u64 + bytes);
    }

    fn lose(&mut self, number: u64, bytes: u64) {
        self.lost += bytes;
        self.lost_at = number;
    }

    fn first(&self) -> Option<u64> {
        if self.lost > 0 { Some(self.lost_at) } else { self.pieces.front().map(|(number, _)| *number) }
    }

    fn take(&mut self) -> Option<Piece> {
        let offset = self.offset;
        if self.lost > 0 {
            let bytes = std::mem::take(&mut self.lost);
            self.offset += bytes;
            return Some(Piece::Lost { offset, bytes });
        }
        let (_, data) = self.pieces.pop_front()?;
        self.bytes -= data.len() + PIECE_BYTES;
        self.offset += data.len() as u64;
        Some(Piece::Data(data))
    }
}

fn slot(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

const NAMES: [&str; 2] = ["stdout", "stderr"];

impl Inbox {
    fn accept(&mut self, event: Event) {
        self.arrived += 1;
        let number = self.arrived;
        match event {
            Event::Stdout(data) => self.streams[0].push(number, data),
            Event::Stderr(data) => self.streams[1].push(number, data),
            Event::Dropped { stream, bytes, .. } => self.streams[slot(stream)].gap(number, bytes),
            Event::Exit(exit) => self.exit = Some(exit),
        }
    }

    /// Whether there is something for this side.
    fn has(&self, side: Side) -> bool {
        self.exit.is_some()
            || match side {
                Side::Stream(index) => self.streams[index].first().is_some(),
                Side::All => self.streams.iter().any(|s| s.first().is_some()),
                Side::Exit => false,
            }
    }

    /// The stream whose next piece came first.
    fn earliest(&self) -> Option<usize> {
        let numbered = self.streams.iter().enumerate().filter_map(|(index, s)| Some((s.first()?, index)));
        numbered.min().map(|(_, index)| index)
    }
}

#[derive(Clone, Copy)]
enum Side {
    Stream(usize),
    All,
    Exit,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fill(&self, side: Side) -> libdsec::Result<()> {
        loop {
            if self.inbox().has(side) {
                return Ok(());
            }
            let mut process = self.process.lock().await;
            // Whoever read before may have found it.
            if self.inbox().has(side) {
                return Ok(());
            }
            match process.next().await? {
                Some(event) => self.inbox().accept(event),
                None => return Err(libdsec::Error::internal("a command ended without an exit")),
            }
        }
    }

    /// None at the end, False where another reader took it.
    fn take(&self, py: Python<'_>, side: Side) -> PyResult<Py<PyAny>> {
        let mut inbox = self.inbox();
        let exit = inbox.exit;
        let index = match side {
            Side::Stream(index) => Some(index),
            Side::All => inbox.earliest(),
            Side::Exit => return object(py, exit.map(exec::exit)),
        };
        match (index.and_then(|i| Some((NAMES[i], inbox.streams[i].take()?))), exit) {
            (Some((name, Piece::Data(data))), _) => object(py, (name, PyBytes::new(py, &data))),
            (Some((name, Piece::Lost { offset, bytes })), _) => object(py, (name, offset, bytes)),
            (None, None) => object(py, false),
            (None, Some(exit)) if matches!(side, Side::All) && !inbox.exit_taken => {
                inbox.exit_taken = true;
                object(py, ("exit", exec::exit(exit)))
            }
            (None, Some(_)) => Ok(py.None()),
        }
    }
}

fn object<'py>(py: Python<'py>, value: impl IntoPyObject<'py>) -> PyResult<Py<PyAny>> {
    value.into_py_any(py)
}

#[pyclass(frozen)]
pub(crate) struct Process {
    exec_id: String,
    shared: Arc<Shared>,
    control: ProcessControl,
    stdin: StdinWriter,
    home: Home,
}

impl Process {
    pub(crate) fn new(process: libdsec::Process) -> Self {
        let from = process.offsets();
        let (exec_id, control, stdin) =
            (process.exec_id().as_str().to_owned(), process.control(), process.stdin());
        let mut inbox = Inbox::default();
        inbox.streams[0].offset = from.stdout_offset;
        inbox.streams[1].offset = from.stderr_offset;
        let shared = Arc::new(Shared { process: AsyncMutex::new(process), inbox: Mutex::new(inbox) });
        Self { exec_id, shared, control, stdin, home: Home::here() }
    }

    fn check(&self) -> PyResult<()> {
        self.home.check("process", "attach to it again by its exec_id")
    }
}

#[pymethods]
impl Process {
    #[getter]
    fn exec_id(&self) -> &str {
        &self.exec_id
    }

    /// The exit; `wait_ms`: how long to wait for it.
    #[pyo3(signature = (wait_ms))]
    fn wait_exit(&self, wait_ms: Option<u64>) -> PyResult<Call> {
        self.check()?;
        let (shared, taken) = (self.shared.clone(), self.shared.clone());
        let ended = async move { shared.fill(Side::Exit).await };
        Ok(Call::new(exec::within(wait_ms, ended), move |py, ()| taken.take(py, Side::Exit)))
    }

    /// What comes next of `side`, one of "stdout", "stderr", "all": `(stream, bytes)`,
    /// `(stream, offset, bytes lost)`, `("exit", exit)`. None at the end, False: ask again.
    fn next(&self, side: &str) -> PyResult<Call> {
        self.check()?;
        let side = match side {
            "stdout" => Side::Stream(0),
            "stderr" => Side::Stream(1),
            "all" => Side::All,
            _ => return Err(PyValueError::new_err("side")),
        };
        let (shared, taken) = (self.shared.clone(), self.shared.clone());
        Ok(Call::new(async move { shared.fill(side).await }, move |py, ()| taken.take(py, side)))
    }

    /// The next byte of each stream that was not taken: what an attach needs to go on here.
    fn offsets(&self) -> (u64, u64) {
        let inbox = self.shared.inbox();
        (inbox.streams[0].offset, inbox.streams[1].offset)
    }

    fn write(&self, data: PyBackedBytes) -> PyResult<Call> {
        self.check()?;
        let stdin = self.stdin.clone();
        Ok(Call::unit(async move { stdin.write(Bytes::from_owner(data)).await }))
    }

    fn close_stdin(&self) -> PyResult<Call> {
        self.check()?;
        let stdin = self.stdin.clone();
        Ok(Call::unit(async move { stdin.close().await }))
    }

    fn signal(&self, signal: i32, tree: bool) -> PyResult<Call> {
        self.check()?;
        let control = self.control.clone();
        Ok(Call::unit(async move {
            if tree { control.signal_tree(signal).await } else { control.signal(signal).await }
        }))
    }

    fn kill(&self) -> PyResult<Call> {
        self.check()?;
        let control = self.control.clone();
        Ok(Call::unit(async move { control.kill().await }))
    }

    fn resize(&self, rows: u16, cols: u16) -> PyResult<Call> {
        self.check()?;
        let control = self.control.clone();
        Ok(Call::unit(async move { control.resize(rows, cols).await }))
    }
}
