//! exec_output: what a command has written since an offset. A poll, for a protocol whose calls end.
//!
//! Offsets count bytes of each stream, so that nothing is shown twice and a gap is a number.

use std::time::Duration;

use libdsec::{Event, ExecId, Exit, OutputStream, Process, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Call, Hints, READS, Verb,
    exec::{Ended, output_chars},
    within_bounds,
};
use crate::{limit, text};

pub(super) struct ExecOutput;

/// After the first news: more that comes at once belongs to the same answer.
const SETTLE: Duration = Duration::from_millis(50);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// As exec answered it.
    exec_id: String,
    /// Where to go on in stdout: next_stdout_offset of the last answer.
    #[serde(default)]
    stdout_offset: u64,
    /// Where to go on in stderr: next_stderr_offset of the last answer.
    #[serde(default)]
    stderr_offset: u64,
    /// Where there is nothing new yet, wait this many seconds for more output or the end; at most 300.
    #[serde(default)]
    wait_s: u64,
    /// How many characters of stdout and stderr together to answer with; 30000 unless told otherwise.
    #[serde(default)]
    max_output_chars: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    running: bool,
    #[serde(flatten)]
    ended: Option<Ended>,
    stdout: String,
    stderr: String,
    next_stdout_offset: u64,
    next_stderr_offset: u64,
    /// There is more: ask again with the next offsets.
    more: bool,
    /// Bytes between the offsets asked for and this answer that are not kept any more.
    lost_bytes: u64,
}

/// One stream of the answer.
#[derive(Default)]
struct Part {
    data: Vec<u8>,
    next: u64,
}

/// What is read in one poll.
struct Poll {
    parts: [Part; 2],
    lost_bytes: u64,
    exit: Option<Exit>,
    bytes_max: usize,
}

impl Poll {
    fn full(&self) -> bool {
        self.parts.iter().map(|p| p.data.len()).sum::<usize>() >= self.bytes_max
    }

    fn news(&self) -> bool {
        self.exit.is_some() || self.lost_bytes > 0 || self.parts.iter().any(|p| !p.data.is_empty())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Stdout(data) => self.push(0, &data),
            Event::Stderr(data) => self.push(1, &data),
            Event::Dropped { stream, bytes, .. } => {
                let part = &mut self.parts[usize::from(stream == OutputStream::Stderr)];
                part.next += bytes;
                self.lost_bytes += bytes;
            }
            Event::Exit(exit) => self.exit = Some(exit),
        }
    }

    /// What is over the bound is left for the next poll.
    fn push(&mut self, at: usize, data: &[u8]) {
        let used: usize = self.parts.iter().map(|p| p.data.len()).sum();
        let data = &data[..data.len().min(self.bytes_max.saturating_sub(used))];
        self.parts[at].data.extend_from_slice(data);
        self.parts[at].next += data.len() as u64;
    }

    /// Reads what is there up to `known` (bytes of each stream), and waits until `deadline` where that is nothing.
    async fn read(&mut self, process: &mut Process, known: [u64; 2], deadline: Instant) -> Result<()> {
        let mut until = deadline;
        while !self.full() && self.exit.is_none() {
            let behind = self.parts.iter().zip(known).any(|(part, known)| part.next < known);
            if self.news() && !behind {
                until = until.min(Instant::now() + SETTLE);
            }
            // What is known to be there comes at once: it has the call's own deadline.
            let next = if behind {
                process.next().await
            } else {
                match tokio::time::timeout_at(until, process.next()).await {
                    Ok(next) => next,
                    Err(_) => return Ok(()),
                }
            };
            let Some(event) = next? else { return Ok(()) };
            self.take(event);
        }
        Ok(())
    }
}

impl Verb for ExecOutput {
    const NAME: &'static str = "exec_output";
    const TITLE: &'static str = "Output of a command";
    const ABOUT: &'static str = "What a command (of exec, with background) has written from the given offsets on, and whether it still runs \
        or how it ended.";
    const HINTS: Hints = READS;
    type Args = Args;
    type Answer = Answer;

    fn within(args: &Args) -> Duration {
        limit::CALL_WITHIN + Duration::from_secs(args.wait_s.min(limit::POLL_S_MAX))
    }

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let wait = Duration::from_secs(within_bounds("wait_s", args.wait_s, 0, limit::POLL_S_MAX)?);
        let bytes_max = output_chars(args.max_output_chars)?;
        let exec_id: ExecId = args.exec_id.parse()?;
        let sandbox = call.sandbox().await?;
        let info = sandbox.exec_info(&exec_id).await?;
        let (out, err) = (args.stdout_offset, args.stderr_offset);
        // An offset past the end is no error: nothing is there yet.
        let (out, err) = (out.min(info.stdout_bytes), err.min(info.stderr_bytes));
        let mut process = sandbox.attach(&exec_id, out, err).await?;
        let parts = [out, err].map(|next| Part { data: Vec::new(), next });
        let mut poll = Poll { parts, lost_bytes: 0, exit: None, bytes_max };
        // An exit comes after the output: a moment for it, also where nothing is to be waited for.
        let patience = if info.exit.is_some() { limit::CALL_WITHIN } else { wait.max(SETTLE) };
        let known = [info.stdout_bytes, info.stderr_bytes];
        poll.read(&mut process, known, Instant::now() + patience).await?;
        Ok(poll.finish())
    }
}

impl Poll {
    fn finish(mut self) -> Answer {
        let more = self.full() && self.exit.is_none();
        // Without an end, the rest of a last character may still come; at the bound it is there already.
        if self.exit.is_none() {
            for part in &mut self.parts {
                let unfinished = text::unfinished(&part.data);
                if unfinished < part.data.len() {
                    part.data.truncate(part.data.len() - unfinished);
                    part.next -= unfinished as u64;
                }
            }
        }
        let [stdout, stderr] = &self.parts;
        Answer {
            running: self.exit.is_none(),
            ended: self.exit.as_ref().map(Ended::of),
            stdout: text::clean(&stdout.data),
            stderr: text::clean(&stderr.data),
            next_stdout_offset: stdout.next,
            next_stderr_offset: stderr.next,
            more,
            lost_bytes: self.lost_bytes,
        }
    }
}
