//! The pump of one run: takes frames from aether into the log, acknowledges what is in a file, comes back after a lost
//! connection, and records the end.
//!
//! It takes no more from aether while the slowest attached client is behind: aether then stops reading from the
//! process, and the process waits. Nothing is dropped for an attached client.

use std::{io, sync::Arc, time::Duration};

use api::{
    Code,
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, Exit, ExitReason},
    frame::{ClientFrame, ServerFrame, Stream},
};
use bytes::Bytes;
use tokio::sync::watch;

use super::{
    End, Input, Run,
    log::{MEMORY_BYTES_ENDED_MAX, STREAMS, index},
    record,
};
use crate::clock::now_ms;

/// Acknowledge in strides: a frame for each chunk would cost as much as the chunk.
const ACK_BYTES: u64 = 128 << 10;
/// How often a lost connection is tried again without a frame in between, and how long it waits between.
const ATTACH_TRIES_MAX: u32 = 20;
const ATTACH_DELAY_MS_MIN: u64 = 10;
const ATTACH_DELAY_MS_MAX: u64 = 1000;
/// Between tries to write to a disk that refuses.
const WRITE_DELAY_MS: u64 = 1000;
/// For the last acknowledgement: the agent frees memory by it, nothing else depends on it.
const LAST_ACK_MS_MAX: u64 = 1000;

pub(crate) struct Pump {
    pub(crate) run: Arc<Run>,
    pub(crate) chronus: Arc<dyn Chronus>,
    pub(crate) end: watch::Receiver<End>,
}

/// Why following a stream ended.
enum Followed {
    Exited(Exit),
    Lost,
    Ended(End),
}

impl Pump {
    /// Follows the run to its end; `stream` is None where it must be attached to first. True: it ended and is
    /// recorded; false: the edge leaves it alone.
    pub(crate) async fn run(mut self, mut stream: Option<ExecStream>) -> bool {
        if self.run.key.is_some() {
            self.save().await;
        }
        let mut tries = 0;
        let exit = loop {
            let mut attached = match stream.take() {
                Some(attached) => attached,
                None => match self.attach(&mut tries).await {
                    Ok(attached) => attached,
                    Err(End::Leaving) => return self.leave(),
                    Err(_) => break self.gone(),
                },
            };
            self.run.input.send_replace(Input::Connected(attached.input.clone()));
            let followed = self.follow(&mut attached, &mut tries).await;
            match followed {
                Followed::Exited(exit) => {
                    self.finish(exit, Some(attached)).await;
                    return true;
                }
                Followed::Lost => {
                    self.run.input.send_replace(Input::Lost);
                }
                Followed::Ended(End::Leaving) => return self.leave(),
                Followed::Ended(_) => break self.gone(),
            }
        };
        self.finish(exit, None).await;
        true
    }

    fn leave(&self) -> bool {
        self.run.input.send_replace(Input::Ended);
        self.run.log.close();
        false
    }

    fn gone(&self) -> Exit {
        let duration_ms = now_ms().saturating_sub(self.run.started_ms);
        Exit { code: 137, reason: ExitReason::SandboxGone, signal: None, duration_ms }
    }

    async fn ended(end: &mut watch::Receiver<End>) -> End {
        match end.wait_for(|e| *e != End::No).await {
            Ok(end) => *end,
            // The owner is gone without a word: the edge is torn down.
            Err(_) => End::Leaving,
        }
    }

    /// Attaches again from where the log is. Err: never mind.
    async fn attach(&mut self, tries: &mut u32) -> Result<ExecStream, End> {
        while *tries < ATTACH_TRIES_MAX {
            let delay_ms = (ATTACH_DELAY_MS_MIN << (*tries).min(7)).min(ATTACH_DELAY_MS_MAX);
            let wait_ms = if *tries == 0 { 0 } else { delay_ms };
            *tries += 1;
            let [stdout_offset, stderr_offset] = self.run.log.totals();
            let from = AttachQuery { stdout_offset, stderr_offset };
            let again = async {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                self.chronus.exec_attach(self.run.id.clone(), from).await
            };
            let attached = tokio::select! {
                end = Self::ended(&mut self.end) => return Err(end),
                attached = again => attached,
            };
            match attached {
                Ok(stream) => return Ok(stream),
                Err(e) if matches!(e.code, Code::NotFound | Code::SandboxGone | Code::SandboxBroken) => break,
                Err(error) => tracing::warn!(exec = %self.run.id, %error, "exec: attach failed"),
            }
        }
        tracing::warn!(exec = %self.run.id, "exec: the agent does not have it any more");
        Err(End::SandboxEnded)
    }

    async fn follow(&mut self, stream: &mut ExecStream, tries: &mut u32) -> Followed {
        let mut acked = [0; 2];
        loop {
            let spooled = self.run.log.spooled();
            let due = spooled.iter().zip(acked).any(|(s, a)| s.saturating_sub(a) >= ACK_BYTES);
            let frame = tokio::select! {
                biased;
                end = Self::ended(&mut self.end) => return Followed::Ended(end),
                permit = stream.input.reserve(), if due => {
                    let Ok(permit) = permit else { return Followed::Lost };
                    permit.send(ClientFrame::Ack { stdout: spooled[0], stderr: spooled[1] });
                    acked = spooled;
                    continue;
                }
                frame = stream.output.recv() => frame,
            };
            match frame {
                Some(ServerFrame::Output { stream, offset, data }) => {
                    *tries = 0;
                    if let Err(followed) = self.take(stream, offset, data).await {
                        return followed;
                    }
                }
                Some(ServerFrame::Exit(exit)) => return Followed::Exited(exit),
                Some(ServerFrame::Dropped { stream, offset, bytes }) => {
                    *tries = 0;
                    if let Err(followed) = self.skip(stream, offset, bytes).await {
                        return followed;
                    }
                }
                Some(ServerFrame::Error(error)) => {
                    tracing::warn!(exec = %self.run.id, %error, "exec: the agent ended the stream");
                    return Followed::Lost;
                }
                Some(ServerFrame::Started(_) | ServerFrame::Alive) => {}
                None => return Followed::Lost,
            }
        }
    }

    /// Takes bytes at `offset` into the log; those that it has already are skipped.
    async fn take(&mut self, stream: Stream, offset: u64, mut data: Bytes) -> Result<(), Followed> {
        let total = self.run.log.totals()[index(stream)];
        if offset > total {
            tracing::error!(exec = %self.run.id, offset, total, "exec: the agent skipped bytes");
            return Err(Followed::Ended(End::SandboxEnded));
        }
        let known = (total - offset).min(data.len() as u64);
        let mut data = data.split_off(known as usize);
        while !data.is_empty() {
            let count = data.len().min(self.run.shape.write_bytes_max as usize);
            self.put(stream, data.split_to(count)).await?;
        }
        Ok(())
    }

    async fn put(&mut self, stream: Stream, data: Bytes) -> Result<(), Followed> {
        let log = self.run.log.clone();
        let mut drained = log.drained();
        while !log.has_room(stream, data.len() as u64) {
            tokio::select! {
                end = Self::ended(&mut self.end) => return Err(Followed::Ended(end)),
                _ = drained.changed() => {}
            }
        }
        if log.append_to_memory(stream, &data) {
            return Ok(());
        }
        self.write(move || log.append_to_file(stream, &data)).await
    }

    /// The agent lost bytes: it lets go of what it has sent while a client's input blocks the acknowledgements, and an
    /// edge that dies in that moment has not stored them.
    async fn skip(&mut self, stream: Stream, offset: u64, bytes: u64) -> Result<(), Followed> {
        let total = self.run.log.totals()[index(stream)];
        let lost = (offset + bytes).saturating_sub(total);
        if lost == 0 {
            return Ok(());
        }
        tracing::warn!(exec = %self.run.id, offset = total, bytes = lost, "exec: output was lost in a crash");
        let log = self.run.log.clone();
        self.write(move || log.skip(stream, lost)).await
    }

    /// Writes, as often as it takes. What is not written is not acknowledged: aether holds it, and the process waits.
    async fn write(
        &mut self,
        act: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<(), Followed> {
        let act = Arc::new(act);
        loop {
            let act = act.clone();
            let written = tokio::task::spawn_blocking(move || act()).await;
            let Err(error) = written.map_err(io::Error::other).flatten() else { return Ok(()) };
            tracing::error!(exec = %self.run.id, %error, "spool: cannot be written");
            tokio::select! {
                end = Self::ended(&mut self.end) => return Err(Followed::Ended(end)),
                () = tokio::time::sleep(Duration::from_millis(WRITE_DELAY_MS)) => {}
            }
        }
    }

    async fn save(&self) -> bool {
        let run = self.run.clone();
        let saved = tokio::task::spawn_blocking(move || record::save(&run)).await;
        match saved.map_err(io::Error::other).flatten() {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(exec = %self.run.id, %error, "spool: the record cannot be written");
                false
            }
        }
    }

    /// Tells the clients first, the disk after: until the last acknowledgement aether remembers the run too.
    async fn finish(&self, exit: Exit, stream: Option<ExecStream>) {
        self.run.input.send_replace(Input::Ended);
        self.run.log.finish(exit);
        let log = self.run.log.clone();
        let spill = tokio::task::spawn_blocking(move || {
            for (n, stream) in STREAMS.into_iter().enumerate() {
                let in_memory = log.in_memory_bytes()[n];
                if in_memory > MEMORY_BYTES_ENDED_MAX {
                    log.append_to_file(stream, &[])?;
                }
            }
            log.close_idle_files();
            io::Result::Ok(())
        });
        let spilled = spill.await.map_err(io::Error::other).flatten();
        if let Err(error) = &spilled {
            tracing::error!(exec = %self.run.id, %error, "spool: cannot be written");
        }
        let saved = self.save().await;
        let Some(stream) = stream.filter(|_| saved && spilled.is_ok()) else { return };
        let [stdout, stderr] = self.run.log.totals();
        let ack = stream.input.send(ClientFrame::Ack { stdout, stderr });
        // Too late or never, the agent forgets it with its oldest runs.
        let _ = tokio::time::timeout(Duration::from_millis(LAST_ACK_MS_MAX), ack).await;
    }
}
