//! A session's terminal for the time of one request: what was not taken yet, what comes, and lines to it.

use std::sync::Arc;

use api::{
    Code, Error,
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, ExecInfo, Exit},
    frame::{ClientFrame, ServerFrame},
    limit::FRAME_BYTES_MAX,
};
use bytes::Bytes;
use tokio::time::{Duration, Instant, timeout, timeout_at};

use super::{mark::State, places::Hint, transcript::Transcript};
use crate::fault::{Exception, Fault};

/// How far back a log is read for the last mark, in steps: most sessions wait, and then it is at the very end. Farther
/// back the log has holes, and a mark before one does not tell what was taken in it.
const LOOK_BACK: [u64; 4] = [512, 64 << 10, 1 << 20, 5 << 20];
/// To read what the log has already.
const LOG_TIME_MAX: Duration = Duration::from_secs(20);

pub(super) struct Terminal {
    stream: ExecStream,
    pub(super) text: Transcript,
    /// A command has begun and not ended.
    pub(super) busy: bool,
}

/// What came of waiting.
pub(super) enum Came {
    /// Output, from this index of the text on.
    Output(usize),
    Late,
}

impl Terminal {
    /// At what was not taken yet. None: the session has never been whole.
    pub(super) async fn open(
        chronus: &Arc<dyn Chronus>,
        exec: &ExecInfo,
        hint: Option<Hint>,
    ) -> Result<Option<Self>, Fault> {
        for back in LOOK_BACK {
            let from = exec.stdout_bytes.saturating_sub(back);
            let mut terminal = Self::attach(chronus, exec, from).await?;
            let read = terminal.read_to(exec.stdout_bytes);
            timeout(LOG_TIME_MAX, read).await.map_err(|_| late())??;
            let state = State::of(terminal.text.bytes());
            if let Some(taken) = state.taken {
                terminal.busy = state.busy.unwrap_or(false);
                let taken = hint.and_then(|hint| hint.index_in(&exec.exec_id, &terminal.text, taken));
                terminal.text.take(taken.or(state.taken).unwrap_or(0));
                return Ok(Some(terminal));
            }
            if from == 0 {
                return Ok(None);
            }
            if Some(&back) == LOOK_BACK.last() {
                // So much has come since that the mark is not kept, or too far back: all that is, is told.
                terminal.busy = state.busy.unwrap_or(true);
                return Ok(Some(terminal));
            }
        }
        Ok(None)
    }

    /// From an offset of the log on.
    pub(super) async fn attach(
        chronus: &Arc<dyn Chronus>,
        exec: &ExecInfo,
        from: u64,
    ) -> Result<Self, Fault> {
        let query = AttachQuery { stdout_offset: from, stderr_offset: 0 };
        let stream = chronus.exec_attach(exec.exec_id.clone(), query).await?;
        Ok(Self::of(stream, from))
    }

    pub(super) fn of(stream: ExecStream, from: u64) -> Self {
        Self { stream, text: Transcript::at(from), busy: false }
    }

    async fn read_to(&mut self, end: u64) -> Result<(), Fault> {
        while self.text.end() < end {
            self.next().await?;
        }
        Ok(())
    }

    /// Waits for output. Faults: the shell or the sandbox has ended.
    pub(super) async fn more(&mut self, deadline: Instant) -> Result<Came, Fault> {
        match timeout_at(deadline, self.next()).await {
            Ok(fresh) => fresh.map(Came::Output),
            Err(_) => Ok(Came::Late),
        }
    }

    async fn next(&mut self) -> Result<usize, Fault> {
        loop {
            match self.stream.output.recv().await {
                Some(ServerFrame::Output { offset, data, .. }) => return Ok(self.text.push(offset, &data)),
                Some(ServerFrame::Dropped { offset, bytes, .. }) => {
                    self.text.skip(offset.saturating_add(bytes));
                }
                Some(ServerFrame::Exit(exit)) => return Err(self.ended(exit)),
                Some(ServerFrame::Error(error)) => return Err(error.into()),
                Some(ServerFrame::Started(_) | ServerFrame::Alive) => {}
                None => return Err(Error::internal("the session's output broke off").into()),
            }
        }
    }

    fn ended(&self, exit: Exit) -> Fault {
        let said = self.text.text(0, self.text.bytes().len());
        let tail = said.len().saturating_sub(2000);
        let said = &said[said.ceil_char_boundary(tail)..];
        let message =
            format!("End Of File (EOF). The session's shell has ended with exit code {}.\n{said}", exit.code);
        Fault::raised(Exception::Eof, message)
    }

    /// Sends without waiting, to the end whether or not this request is waited for: half a line would spoil the next.
    pub(super) fn send(&self, text: impl Into<Bytes>) {
        let (input, mut text) = (self.stream.input.clone(), text.into());
        tokio::spawn(async move {
            while !text.is_empty() {
                let part = text.split_to(text.len().min(FRAME_BYTES_MAX));
                // An error is a shell that has ended, of which the output tells.
                if input.send(ClientFrame::Stdin(part)).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn late() -> Fault {
    Error::new(Code::DeadlineExceeded, "the session's log was not read in time").into()
}
