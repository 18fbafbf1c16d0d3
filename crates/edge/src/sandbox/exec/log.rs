//! The output of one exec: one writer (the pump), any number of attached readers (cursors).
//!
//! Small outputs stay in memory, not acknowledged: aether still holds them, so a killed edge loses nothing and `true`
//! costs no file. What grows beyond [`Shape::memory_bytes_max`] goes to a [`Spool`] and is never held in memory again.
//!
//! Live and replay are one thing: a cursor reads from the log what lies behind its offset, and waits at the end.
//! Invariant: while a cursor is attached no byte that it has yet to read is overwritten, because the pump asks
//! [`Log::has_room`] first. So an attached client sees every byte once; only what was gone when it came is declared
//! as dropped.

use std::{
    collections::HashMap,
    fs, io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::{
    exec::{AttachQuery, Exit},
    frame::Stream,
};
use bytes::Bytes;
use tokio::sync::watch;

use super::spool::{Shape, Spool};

/// What a stream of an ended exec keeps in memory: 64 of them are remembered for each sandbox.
pub(crate) const MEMORY_BYTES_ENDED_MAX: u64 = 4 << 10;
/// Clients attached to one exec.
pub(crate) const CURSORS_MAX: usize = 1024;
/// What a cursor reads at once.
const READ_BYTES_MAX: u64 = 128 << 10;

pub(crate) const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

pub(crate) fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

enum Kept {
    Memory(Vec<u8>),
    /// Open while somebody uses it: an edge remembers more execs than it may have descriptors.
    File(Option<Arc<Spool>>),
}

struct Half {
    total: u64,
    kept: Kept,
    path: PathBuf,
    /// Bytes that the agent lost.
    hole: Range<u64>,
}

impl Half {
    fn new(path: PathBuf) -> Self {
        Self { total: 0, kept: Kept::Memory(Vec::new()), path, hole: 0..0 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    /// What this cursor jumps to from the end of the head: the start of the tail when it came.
    resume: u64,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    places: [Place; 2],
    /// Served last; the other stream goes first.
    last: usize,
}

struct Inner {
    halves: [Half; 2],
    exit: Option<Exit>,
    /// No more will come, and no exit: the edge leaves.
    closed: bool,
    cursors: HashMap<u64, Cursor>,
    next_cursor: u64,
}

/// See the module.
pub(crate) struct Log {
    inner: Mutex<Inner>,
    shape: Shape,
    grown: watch::Sender<()>,
    drained: watch::Sender<()>,
}

/// What a reader does next.
pub(crate) enum Next {
    Bytes {
        stream: Stream,
        offset: u64,
        data: Bytes,
    },
    /// Read these from the file, on a thread that may block.
    Read {
        stream: Stream,
        offset: u64,
        count: u64,
        spool: Arc<Spool>,
    },
    Dropped {
        stream: Stream,
        offset: u64,
        bytes: u64,
    },
    Exit(Exit),
    /// At the end of what there is.
    Wait,
    Closed,
}

impl Inner {
    fn owed(&self, shape: Shape, cursor: &Cursor, stream: usize) -> u64 {
        let (total, place) = (self.halves[stream].total, cursor.places[stream]);
        match place.at {
            at if at >= total => 0,
            at if place.resume > at => {
                shape.head_bytes.min(total).saturating_sub(at) + total.saturating_sub(place.resume)
            }
            at => total - at,
        }
    }

    fn open(&mut self, shape: Shape, stream: usize) -> io::Result<Option<Arc<Spool>>> {
        let half = &mut self.halves[stream];
        match &mut half.kept {
            Kept::Memory(_) => Ok(None),
            Kept::File(Some(spool)) => Ok(Some(spool.clone())),
            Kept::File(closed) => {
                let spool = Arc::new(Spool::open(&half.path, shape)?.0);
                Ok(Some(closed.insert(spool).clone()))
            }
        }
    }

    fn close_idle_files(&mut self) {
        if self.exit.is_some() && self.cursors.is_empty() {
            for half in &mut self.halves {
                if let Kept::File(open) = &mut half.kept {
                    *open = None;
                }
            }
        }
    }
}

impl Log {
    /// An empty log; its files, if any, will be `paths`.
    pub(crate) fn new(shape: Shape, paths: [PathBuf; 2]) -> Self {
        let halves = paths.map(Half::new);
        Self::with(shape, halves, None)
    }

    /// A log of an earlier process: `memory` where its record holds the bytes, else the file, else nothing.
    pub(crate) fn recover(
        shape: Shape,
        paths: [PathBuf; 2],
        memory: [Option<Bytes>; 2],
        exit: Option<Exit>,
    ) -> Self {
        let (mut shape, mut halves) = (shape, paths.map(Half::new));
        for (half, memory) in halves.iter_mut().zip(memory) {
            if let Some(bytes) = memory {
                half.total = bytes.len() as u64;
                half.kept = Kept::Memory(bytes.into());
                continue;
            }
            match Spool::open(&half.path, shape) {
                Ok((spool, total, hole)) => {
                    // Both streams of a run have one.
                    shape = spool.shape();
                    half.total = total;
                    half.hole = hole;
                    half.kept = Kept::File(exit.is_none().then(|| Arc::new(spool)));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %half.path.display(), %error, "spool: unreadable, its bytes are lost");
                }
            }
        }
        Self::with(shape, halves, exit)
    }

    fn with(shape: Shape, halves: [Half; 2], exit: Option<Exit>) -> Self {
        let inner = Inner { halves, exit, closed: false, cursors: HashMap::new(), next_cursor: 0 };
        Self {
            inner: Mutex::new(inner),
            shape,
            grown: watch::Sender::new(()),
            drained: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when there is more to read.
    pub(crate) fn grown(&self) -> watch::Receiver<()> {
        self.grown.subscribe()
    }
    /// Changes when a reader has moved or left.
    pub(crate) fn drained(&self) -> watch::Receiver<()> {
        self.drained.subscribe()
    }
    pub(crate) fn totals(&self) -> [u64; 2] {
        let inner = self.lock();
        [inner.halves[0].total, inner.halves[1].total]
    }
    /// Up to where each stream is in its file: what aether need not hold any longer.
    pub(crate) fn spooled(&self) -> [u64; 2] {
        let inner = self.lock();
        [0, 1].map(|n| match inner.halves[n].kept {
            Kept::File(_) => inner.halves[n].total,
            Kept::Memory(_) => 0,
        })
    }
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.lock().exit
    }
    /// The bytes that memory holds, for the record of an ended exec.
    pub(crate) fn in_memory(&self) -> [Option<Bytes>; 2] {
        let inner = self.lock();
        [0, 1].map(|n| match &inner.halves[n].kept {
            Kept::Memory(bytes) => Some(Bytes::copy_from_slice(bytes)),
            Kept::File(_) => None,
        })
    }
    /// How much memory holds of each stream.
    pub(crate) fn in_memory_bytes(&self) -> [u64; 2] {
        let inner = self.lock();
        [0, 1].map(|n| match &inner.halves[n].kept {
            Kept::Memory(bytes) => bytes.len() as u64,
            Kept::File(_) => 0,
        })
    }
    /// Gives the descriptors of an ended run back, unless a client reads.
    pub(crate) fn close_idle_files(&self) {
        self.lock().close_idle_files();
    }
    /// Bytes kept in files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.spooled().iter().map(|total| self.shape.bytes_kept(*total)).sum()
    }

    /// May `count` more bytes come, or must the slowest attached reader catch up first?
    pub(crate) fn has_room(&self, stream: Stream, count: u64) -> bool {
        let inner = self.lock();
        inner.cursors.values().all(|cursor| {
            let owed = inner.owed(self.shape, cursor, index(stream));
            owed == 0 || owed + count <= self.shape.lag_bytes_max
        })
    }

    /// Adds bytes to memory. False: they do not fit there, use [`Log::append_to_file`].
    pub(crate) fn append_to_memory(&self, stream: Stream, data: &[u8]) -> bool {
        {
            let mut inner = self.lock();
            let half = &mut inner.halves[index(stream)];
            let Kept::Memory(bytes) = &mut half.kept else { return false };
            if half.total + data.len() as u64 > self.shape.memory_bytes_max {
                return false;
            }
            bytes.extend_from_slice(data);
            half.total += data.len() as u64;
        }
        self.grown.send_replace(());
        true
    }

    /// Adds bytes to the file; makes it, with what memory holds, where there is none. Blocks. Only the pump calls it.
    pub(crate) fn append_to_file(&self, stream: Stream, data: &[u8]) -> io::Result<()> {
        let n = index(stream);
        let (total, spool) = {
            let mut inner = self.lock();
            (inner.halves[n].total, inner.open(self.shape, n)?)
        };
        let spool = match spool {
            Some(spool) => spool,
            None => {
                let (path, old) = {
                    let inner = self.lock();
                    let Kept::Memory(bytes) = &inner.halves[n].kept else { return Ok(()) };
                    (inner.halves[n].path.clone(), bytes.clone())
                };
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                let spool = Spool::create(&path, self.shape)?;
                spool.append(0, &old)?;
                Arc::new(spool)
            }
        };
        spool.append(total, data)?;
        {
            let mut inner = self.lock();
            inner.halves[n].kept = Kept::File(Some(spool));
            inner.halves[n].total += data.len() as u64;
        }
        self.grown.send_replace(());
        Ok(())
    }

    /// The agent lost `bytes` of what comes next: the stream goes on behind them. Blocks. Only the pump calls it.
    pub(crate) fn skip(&self, stream: Stream, bytes: u64) -> io::Result<()> {
        self.append_to_file(stream, &[])?;
        let n = index(stream);
        let (total, hole, spool) = {
            let mut inner = self.lock();
            let (half, total) = (&inner.halves[n], inner.halves[n].total);
            // One hole is remembered: a second one swallows what lies between.
            let start = if half.hole.is_empty() { total } else { half.hole.start };
            (total + bytes, start..total + bytes, inner.open(self.shape, n)?)
        };
        if let Some(spool) = spool {
            spool.skip(total, &hole)?;
        }
        {
            let half = &mut self.lock().halves[n];
            (half.total, half.hole) = (total, hole);
        }
        self.grown.send_replace(());
        Ok(())
    }

    /// The command ended. Its first end stands.
    pub(crate) fn finish(&self, exit: Exit) {
        {
            let mut inner = self.lock();
            inner.exit.get_or_insert(exit);
            inner.close_idle_files();
        }
        self.grown.send_replace(());
    }

    /// Attached readers end without an exit.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.grown.send_replace(());
    }

    /// A new reader; None where there are too many.
    pub(crate) fn attach(self: &Arc<Self>, from: AttachQuery) -> Option<Reader> {
        let mut inner = self.lock();
        if inner.cursors.len() >= CURSORS_MAX {
            return None;
        }
        let mut places = [from.stdout_offset, from.stderr_offset].map(|at| Place { at, resume: at });
        for (place, half) in places.iter_mut().zip(&inner.halves) {
            let tail = self.shape.tail_start(half.total);
            if matches!(half.kept, Kept::File(_)) && tail > self.shape.head_bytes && place.at < tail {
                place.resume = tail;
            }
        }
        let id = inner.next_cursor;
        inner.next_cursor += 1;
        inner.cursors.insert(id, Cursor { places, last: 1 });
        Some(Reader { id, log: self.clone() })
    }

    fn next_of(&self, inner: &mut Inner, cursor: Cursor, n: usize) -> io::Result<Option<Next>> {
        let (stream, place, total) = (STREAMS[n], cursor.places[n], inner.halves[n].total);
        let offset = place.at;
        if offset >= total {
            return Ok(None);
        }
        if let Kept::Memory(bytes) = &inner.halves[n].kept {
            let data = Bytes::copy_from_slice(&bytes[offset as usize..]);
            return Ok(Some(Next::Bytes { stream, offset, data }));
        }
        let head = self.shape.head_bytes;
        if place.resume > offset && offset >= head {
            return Ok(Some(Next::Dropped { stream, offset, bytes: place.resume - offset }));
        }
        let hole = inner.halves[n].hole.clone();
        if hole.contains(&offset) {
            return Ok(Some(Next::Dropped { stream, offset, bytes: hole.end - offset }));
        }
        let end = if offset < head { head.min(total) } else { total };
        let end = if offset < hole.start { end.min(hole.start) } else { end };
        let count = (end - offset).min(READ_BYTES_MAX);
        Ok(inner.open(self.shape, n)?.map(|spool| Next::Read { stream, offset, count, spool }))
    }
}

/// An attached reader. Dropping it detaches.
pub(crate) struct Reader {
    id: u64,
    log: Arc<Log>,
}

impl Reader {
    /// What to do next. Errors where the file cannot be opened any more.
    pub(crate) fn next(&self) -> io::Result<Next> {
        let mut inner = self.log.lock();
        let Some(cursor) = inner.cursors.get(&self.id).copied() else { return Ok(Next::Closed) };
        for n in [1 - cursor.last, cursor.last] {
            if let Some(next) = self.log.next_of(&mut inner, cursor, n)? {
                return Ok(next);
            }
        }
        Ok(match inner.exit {
            Some(exit) => Next::Exit(exit),
            None if inner.closed => Next::Closed,
            None => Next::Wait,
        })
    }

    /// The client has taken the bytes up to `offset`.
    pub(crate) fn advance(&self, stream: Stream, offset: u64) {
        {
            let mut inner = self.log.lock();
            if let Some(cursor) = inner.cursors.get_mut(&self.id) {
                cursor.places[index(stream)].at = offset;
                cursor.last = index(stream);
            }
        }
        self.log.drained.send_replace(());
    }

    pub(crate) fn grown(&self) -> watch::Receiver<()> {
        self.log.grown()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        {
            let mut inner = self.log.lock();
            inner.cursors.remove(&self.id);
            inner.close_idle_files();
        }
        self.log.drained.send_replace(());
    }
}

#[cfg(test)]
mod tests;
