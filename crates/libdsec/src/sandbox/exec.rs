//! exec: runs a command in a sandbox.

use std::{collections::VecDeque, time::Duration};

use api::{
    Error, ExecId, Result,
    arrow::ExecStream,
    exec::{AttachQuery, ExecInfo, ExecRequest, ExecResult, Exit, Output, PtySize, Stdin},
    limit,
};
use bytes::Bytes;

use super::{
    Sandbox,
    process::{Process, StdinUse},
};
use crate::retry;

impl Sandbox {
    /// A command as an argument vector: nothing parses it. Runs when [`Exec::output`] or [`Exec::spawn`] is awaited.
    ///
    /// ```no_run
    /// # async fn demo(sandbox: libdsec::Sandbox) -> libdsec::Result<()> {
    /// use std::time::Duration;
    /// let out = sandbox
    ///     .exec(["python3", "-c", "print('hi there')"])
    ///     .env("PYTHONUTF8", "1")
    ///     .timeout(Duration::from_secs(10))
    ///     .output()
    ///     .await?;
    /// println!("{} {}", out.exit.code, out.stdout_text());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exec<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> Exec {
        Exec::new(self.clone(), ExecRequest::argv(argv))
    }

    /// A text for the sandbox's `/bin/sh -c`.
    ///
    /// ```no_run
    /// # async fn demo(sandbox: libdsec::Sandbox) -> libdsec::Result<()> {
    /// let lines = sandbox.sh("ls /etc | wc -l").output().await?.check()?.stdout_text();
    /// # Ok(())
    /// # }
    /// ```
    pub fn sh(&self, text: impl Into<String>) -> Exec {
        Exec::new(self.clone(), ExecRequest::shell(text))
    }

    /// Attaches to a command that runs, or is remembered, from these offsets on (`AttachQuery::default()`: from its
    /// start). Errors: `not_found`.
    pub async fn attach(&self, exec_id: &ExecId, stdout_offset: u64, stderr_offset: u64) -> Result<Process> {
        let chronus = self.chronus().await?;
        let from = AttachQuery { stdout_offset, stderr_offset };
        let info = self.exec_info(exec_id).await?;
        let stream = retry::repeat(|| chronus.exec_attach(exec_id.clone(), from)).await?;
        Ok(Process::new(chronus, stream, from, StdinUse { pty: info.pty, streams: true }))
    }

    /// The commands that run or are remembered.
    pub async fn execs(&self) -> Result<Vec<ExecInfo>> {
        let chronus = self.chronus().await?;
        retry::repeat(|| chronus.exec_list()).await
    }

    /// What a command has written so far, head and tail, at most 8 MiB of each stream, and its exit if it has ended.
    /// Errors: `not_found`.
    pub async fn exec_output(&self, exec_id: &ExecId) -> Result<ExecResult> {
        let info = self.exec_info(exec_id).await?;
        self.attach(exec_id, 0, 0).await?.recorded(&info).await
    }

    /// What is known of one command. Errors: `not_found`.
    pub async fn exec_info(&self, exec_id: &ExecId) -> Result<ExecInfo> {
        let chronus = self.chronus().await?;
        retry::repeat(|| chronus.exec_inspect(exec_id.clone())).await
    }
}

/// A command to run; nothing happens until [`Exec::output`], [`Exec::spawn`] or [`Exec::detach`].
#[must_use = "nothing runs until output(), spawn() or detach() is awaited"]
pub struct Exec {
    sandbox: Sandbox,
    request: ExecRequest,
    stdin: Bytes,
}

impl Exec {
    fn new(sandbox: Sandbox, mut request: ExecRequest) -> Self {
        // With it a request whose answer was lost may be sent again: the same run is answered.
        request.idempotency_key = Some(uuid::Uuid::new_v4().to_string());
        Self { sandbox, request, stdin: Bytes::new() }
    }

    /// One variable, over the sandbox's environment.
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(key.into(), value.into());
        self
    }

    /// Many variables.
    pub fn envs<K: Into<String>, V: Into<String>>(mut self, all: impl IntoIterator<Item = (K, V)>) -> Self {
        self.request.env.extend(all.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    pub fn cwd(mut self, path: impl Into<String>) -> Self {
        self.request.cwd = Some(path.into());
        self
    }

    /// A name or `uid[:gid]`.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.request.user = Some(user.into());
        self
    }

    /// These bytes, of any size, then end-of-file. Without this the command reads end-of-file at once.
    pub fn stdin(mut self, data: impl Into<Bytes>) -> Self {
        self.stdin = data.into();
        self.request.stdin = Stdin::Data(self.stdin.clone().into());
        self
    }

    /// Input follows by [`Process::stdin`].
    pub fn stdin_stream(mut self) -> Self {
        self.request.stdin = Stdin::Stream;
        self
    }

    /// On a terminal of this size; both outputs come as stdout. Input follows by [`Process::stdin`].
    pub fn pty(mut self, rows: u16, cols: u16) -> Self {
        self.request.pty = Some(PtySize { rows, cols });
        if self.request.stdin == Stdin::None {
            self.request.stdin = Stdin::Stream;
        }
        self
    }

    /// When it runs out, all that the command started is killed ([`api::exec::ExitReason::Timeout`]).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// What [`Exec::output`] keeps of each stream: head and tail, the middle dropped.
    pub fn output_bytes_max(mut self, bytes: u64) -> Self {
        self.request.output_bytes_max = bytes;
        self
    }

    /// A key of your own: a second exec with it, even from another program, is answered with the first one's run.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.request.idempotency_key = Some(key.into());
        self
    }

    /// Runs it and waits for its end. A command that fails is no error here; see [`ExecOutput::check`].
    pub async fn output(self) -> Result<ExecOutput> {
        let output_bytes_max = self.request.output_bytes_max;
        if self.request.stdin == Stdin::Stream {
            // Nobody holds the writer: the command must not wait for input.
            let process = self.spawn().await?;
            process.stdin().close().await?;
            return process.output_with(output_bytes_max).await;
        }
        self.spawn().await?.output_with(output_bytes_max).await
    }

    /// Starts it, attached.
    pub async fn spawn(mut self) -> Result<Process> {
        let inline = self.stdin.len() <= limit::STDIN_INLINE_BYTES_MAX;
        let feed = (!inline).then(|| std::mem::take(&mut self.stdin));
        if feed.is_some() {
            self.request.stdin = Stdin::Stream;
        }
        let (chronus, stream) = self.start().await?;
        let stdin =
            StdinUse { pty: self.request.pty.is_some(), streams: self.request.stdin == Stdin::Stream };
        let process = Process::new(chronus, stream, AttachQuery::default(), stdin);
        if let Some(data) = feed {
            let stdin = process.stdin();
            // Ends with the connection; a command that reads no more is no error, as with a pipe.
            tokio::spawn(async move {
                let written = stdin.write(data).await;
                let closed = stdin.close().await;
                if let Err(e) = written.and(closed) {
                    tracing::debug!(error = %e, "standard input was not read to its end");
                }
            });
        }
        Ok(process)
    }

    /// Starts it and leaves it; find it again by [`Sandbox::attach`].
    pub async fn detach(mut self) -> Result<ExecId> {
        if self.request.stdin == Stdin::Stream {
            return Err(Error::invalid("stdin: a detached command has nobody to stream input"));
        }
        self.request.detach = true;
        Ok(self.start().await?.1.exec_id)
    }

    async fn start(&self) -> Result<(std::sync::Arc<dyn api::arrow::Chronus>, ExecStream)> {
        self.request.validate()?;
        let chronus = self.sandbox.chronus().await?;
        let stream = retry::repeat(|| chronus.exec(self.request.clone())).await?;
        Ok((chronus, stream))
    }
}

/// How a command ended and what it wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecOutput {
    pub exec_id: ExecId,
    pub exit: Exit,
    pub stdout: Output,
    pub stderr: Output,
}

impl ExecOutput {
    /// It ended by itself with code 0.
    pub fn success(&self) -> bool {
        self.exit.code == 0
    }

    /// Stdout as text; what is not UTF-8 is U+FFFD.
    pub fn stdout_text(&self) -> String {
        self.stdout.data.to_text()
    }

    /// Stderr as text.
    pub fn stderr_text(&self) -> String {
        self.stderr.data.to_text()
    }

    /// Itself where the command succeeded, else an error with the end of its stderr.
    pub fn check(self) -> Result<Self> {
        if self.success() {
            return Ok(self);
        }
        let stderr = self.stderr_text();
        let tail_from = stderr.char_indices().rev().nth(999).map_or(0, |(at, _)| at);
        let Exit { code, reason, .. } = self.exit;
        Err(Error::invalid(format!(
            "the command ended with code {code} ({reason:?}): {}",
            &stderr[tail_from..]
        )))
    }
}

/// Keeps the head and the tail of a stream, half of `bytes_max` each, and counts the rest.
pub(crate) struct Collector {
    head_max: usize,
    tail_max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// A hole within the head or before the tail: bytes that never came.
    skipped: u64,
    total: u64,
}

impl Collector {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let tail_max = bytes_max / 2;
        let (head, tail) = (Vec::new(), VecDeque::new());
        Self { head_max: bytes_max - tail_max, tail_max, head, tail, skipped: 0, total: 0 }
    }

    pub(crate) fn push(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        // After a hole everything is tail: head and tail are each without one.
        let room =
            if self.skipped == 0 && self.tail.is_empty() { self.head_max - self.head.len() } else { 0 };
        let (head, tail) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(head);
        let tail = &tail[tail.len().saturating_sub(self.tail_max)..];
        let over = (self.tail.len() + tail.len()).saturating_sub(self.tail_max);
        self.tail.drain(..over);
        self.tail.extend(tail);
    }

    /// `bytes` are lost: what came before them and is not head makes way.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.total += bytes;
        self.skipped += bytes;
        self.tail.clear();
    }

    pub(crate) fn finish(self) -> Output {
        let dropped_at = self.head.len() as u64;
        let mut data = self.head;
        data.extend(self.tail);
        let bytes_dropped = self.total - data.len() as u64;
        let truncated = bytes_dropped > 0;
        let dropped_at = if truncated { dropped_at } else { 0 };
        Output { data: data.into(), bytes_total: self.total, bytes_dropped, dropped_at, truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hole_lies_where_it_is_said_to_lie() {
        let mut c = Collector::new(8);
        c.push(b"ab");
        c.skip(10);
        c.push(b"yz");
        let out = c.finish();
        assert_eq!(out.data.0, "abyz");
        assert_eq!((out.bytes_total, out.bytes_dropped, out.dropped_at, out.truncated), (14, 10, 2, true));
    }

    proptest! {
        #[test]
        fn head_and_tail_are_those_of_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..200),
                                                max in 0u64..64, step in 1usize..50) {
            let mut c = Collector::new(max);
            bytes.chunks(step).for_each(|chunk| c.push(chunk));
            let out = c.finish();
            prop_assert!(out.data.0.len() as u64 <= max);
            prop_assert_eq!(out.bytes_total, bytes.len() as u64);
            let at = if out.truncated { out.dropped_at as usize } else { out.data.0.len() };
            prop_assert_eq!(&out.data.0[..at], &bytes[..at]);
            prop_assert_eq!(&out.data.0[at..], &bytes[at + out.bytes_dropped as usize..]);
            prop_assert_eq!(out.truncated, bytes.len() as u64 > max);
        }
    }
}
