//! A forked child that does one thing inside and tells the outcome: the road of files, tars, watches and ports.
//!
//! ```text
//! agent                                child
//!  run() ----------- fork -----------> closes what it does not need, enters, becomes the user
//!  recv() <-- 'D' part of an answer -- (answers over a message's size come in parts)
//!         <-- 'R' answer, descriptors
//!         <-- 'E' api::Error
//!  commit() -- 'C' ------------------> (verbs with two steps)
//! ```
//! Dropping the agent's end kills the child; a child that waits for `C` sees the end closed and undoes.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use api::{Code, Error, Result};
use linux::{
    clone::{self, Args},
    scm,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::OwnedSemaphorePermit,
};

use crate::{
    account::{self, Account},
    inside::{Depth, Inside, OomCounter, not_forked, step},
    process::{self, Process},
};

/// One message; under the kernel's default socket buffer.
const PART_BYTES: usize = 64 << 10;
/// An answer: room for a directory of 100,000 names.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A file operation without a stream.
pub const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// For a place among the helpers.
const PLACE_DEADLINE: Duration = Duration::from_secs(10);
/// To remove one file.
const UNDO_DEADLINE: Duration = Duration::from_secs(10);

/// Whose memory a helper's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Sandbox,
    Nobody,
}

/// The agent's end.
pub struct Worker {
    link: Option<AsyncFd<OwnedFd>>,
    process: Option<Process>,
    may_undo: bool,
    /// Kills for memory when it began, and now.
    oom: (u64, Arc<OomCounter>),
    _place: OwnedSemaphorePermit,
}

/// What a child sees.
pub struct Job<'a> {
    pub inside: &'a Inside,
    /// Who it is (root's entry in the network alone).
    pub account: Account,
    link: &'a OwnedFd,
    /// Descriptors that it was started with, in order.
    pub fds: Vec<OwnedFd>,
}

/// One message from a child.
struct Message {
    kind: u8,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Worker {
    /// Forks and runs `work` inside as `user`. `fds` move to the child. Errors: `rate_limited` where too many are at work.
    pub async fn run(
        inside: &Inside,
        depth: Depth,
        user: Option<&str>,
        fds: Vec<OwnedFd>,
        work: impl FnOnce(&mut Job) -> Result<()>,
    ) -> Result<Self> {
        Self::run_charged(inside, (depth, Charge::Sandbox), user, fds, work).await
    }

    async fn run_charged(
        inside: &Inside,
        (depth, charge): (Depth, Charge),
        user: Option<&str>,
        fds: Vec<OwnedFd>,
        work: impl FnOnce(&mut Job) -> Result<()>,
    ) -> Result<Self> {
        let fail = |e: io::Error| Error::internal(format!("cannot start a helper process: {}", e.kind()));
        let place = tokio::time::timeout(PLACE_DEADLINE, inside.helpers.clone().acquire_owned()).await;
        let place = place.map_err(|_| too_many())?.map_err(|_| too_many())?;
        let oom = (inside.oom_kills(), inside.oom_counter());
        let (ours, theirs) = scm::pair().map_err(fail)?;
        let cgroup = inside.helpers_cgroup().filter(|_| charge == Charge::Sandbox);
        let args = Args { cgroup, ..Args::default() };
        let child = clone::spawn(&args, || {
            let done = in_child(inside, (depth, charge), user, &fds, &theirs, work);
            i32::from(done.is_err())
        })
        .map_err(|e| not_forked(&e))?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|e| fail(e.into()))?;
        let link = process::ready(ours, Interest::READABLE | Interest::WRITABLE).map_err(fail)?;
        Ok(Self {
            link: Some(link),
            process: Some(Process::new(child.pidfd).map_err(fail)?),
            may_undo: false,
            oom,
            _place: place,
        })
    }

    /// It ended without a word.
    fn vanished(&self, error: &io::Error) -> Error {
        if self.oom.1.read() > self.oom.0 {
            let message = "no memory is left in the sandbox for the file operation: end something, or remove files from memory";
            return Error::new(Code::OomKilled, message);
        }
        eprintln!("aether: helper: {error}");
        Error::internal("a helper process ended without an answer")
    }

    /// Dropped, this worker's child is not killed at once but sees the end closed, and gets [`UNDO_DEADLINE`].
    pub fn let_undo(&mut self) {
        self.may_undo = true;
    }

    fn link(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        self.link.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Runs `work` to its one answer, within [`CALL_DEADLINE`].
    pub async fn call<T: Serialize + DeserializeOwned>(
        inside: &Inside,
        depth: Depth,
        user: Option<&str>,
        work: impl FnOnce(&mut Job) -> Result<T>,
    ) -> Result<T> {
        let mut worker = Self::run(inside, depth, user, Vec::new(), |job| {
            let answer = work(job)?;
            job.answer(&answer, &[])
        })
        .await?;
        worker.answer().await.map(|(answer, _)| answer)
    }

    /// As [`Worker::call`], for what gives memory back: it must work where none is left.
    pub async fn call_uncharged<T: Serialize + DeserializeOwned>(
        inside: &Inside,
        user: Option<&str>,
        work: impl FnOnce(&mut Job) -> Result<T>,
    ) -> Result<T> {
        let how = (Depth::Files, Charge::Nobody);
        let mut worker = Self::run_charged(inside, how, user, Vec::new(), |job| {
            let answer = work(job)?;
            job.answer(&answer, &[])
        })
        .await?;
        worker.answer().await.map(|(answer, _)| answer)
    }

    /// The next answer and its descriptors, within [`CALL_DEADLINE`].
    pub async fn answer<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>)> {
        tokio::time::timeout(CALL_DEADLINE, self.next()).await.unwrap_or_else(|_| {
            Err(Error::new(Code::DeadlineExceeded, "the file operation took over a minute and was given up"))
        })
    }

    /// The next answer, however long it takes.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>)> {
        let mut whole = Vec::new();
        loop {
            let message = self.receive().await.map_err(|e| self.vanished(&e))?;
            whole.extend_from_slice(&message.body);
            if whole.len() > ANSWER_BYTES_MAX {
                return Err(Error::invalid(format!("the answer is over {ANSWER_BYTES_MAX} bytes")));
            }
            match message.kind {
                b'D' => {}
                b'R' => return Ok((parse(&whole)?, message.fds)),
                _ => return Err(parse::<Error>(&whole)?),
            }
        }
    }

    /// Tells a child of two steps to finish.
    pub async fn commit(&mut self) -> Result<()> {
        loop {
            let fail = |e: io::Error| Error::internal(e.to_string());
            let mut guard = self.link().map_err(fail)?.writable().await.map_err(fail)?;
            match guard.try_io(|fd| scm::send(fd, b"C", &[])) {
                Ok(done) => return done.map_err(|_| Error::internal("a helper process ended too early")),
                Err(_would_block) => {}
            }
        }
    }

    async fn receive(&mut self) -> io::Result<Message> {
        loop {
            let mut guard = self.link()?.readable().await?;
            let got = guard.try_io(|fd| {
                let mut buffer = vec![0; PART_BYTES + 1];
                let (length, fds) = scm::recv(fd, &mut buffer)?;
                buffer.truncate(length);
                Ok((buffer, fds))
            });
            let Ok(got) = got else { continue };
            let (mut body, fds) = got?;
            if body.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(Message { kind: body.remove(0), body, fds });
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // First, so that the child sees it.
        self.link = None;
        let Some(process) = self.process.take() else { return };
        if self.may_undo && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                // Reaped here; after the deadline, killed by its drop.
                let _ = tokio::time::timeout(UNDO_DEADLINE, process.ended()).await;
            });
        }
    }
}

fn too_many() -> Error {
    Error::new(Code::RateLimited, "too many file operations are under way in this sandbox")
        .retry_after_ms(500)
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|e| Error::internal(format!("a helper process answered nonsense: {e}")))
}

fn in_child(
    inside: &Inside,
    (depth, charge): (Depth, Charge),
    user: Option<&str>,
    fds: &[OwnedFd],
    theirs: &OwnedFd,
    work: impl FnOnce(&mut Job) -> Result<()>,
) -> Result<()> {
    let charged = if charge == Charge::Sandbox { step("memory", inside.join_memory()) } else { Ok(()) };
    let entered = charged.and_then(|()| step("namespaces", inside.enter(depth)));
    // Everything of the agent's goes before a path is followed.
    let keep: Vec<BorrowedFd> = std::iter::once(theirs.as_fd()).chain(fds.iter().map(AsFd::as_fd)).collect();
    let mut kept = linux::fork::keep_only(&keep).map_err(|e| Error::internal(e.to_string()))?;
    let link = kept.remove(0);
    let done = entered.and_then(|()| become_user(inside, depth, user)).and_then(|account| {
        let mut job = Job { inside, account, link: &link, fds: kept };
        work(&mut job)
    });
    if let Err(error) = &done {
        let _ = send_json(&link, b'E', error, &[]);
    }
    done
}

fn become_user(inside: &Inside, depth: Depth, user: Option<&str>) -> Result<Account> {
    if depth == Depth::Network {
        return Ok(Account::root());
    }
    let account = account::resolve(inside.user_or_default(user))?;
    step("user", inside.become_account(&account))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(account)
}

fn send_json(link: &OwnedFd, kind: u8, value: &impl Serialize, fds: &[BorrowedFd]) -> Result<()> {
    let json = serde_json::to_vec(value).map_err(|e| Error::internal(e.to_string()))?;
    let mut rest = json.as_slice();
    loop {
        let (part, after) = rest.split_at(rest.len().min(PART_BYTES));
        let last = after.is_empty();
        let mut message = Vec::with_capacity(part.len() + 1);
        message.push(if last { kind } else { b'D' });
        message.extend_from_slice(part);
        scm::send(link, &message, if last { fds } else { &[] })
            .map_err(|e| Error::internal(e.to_string()))?;
        if last {
            return Ok(());
        }
        rest = after;
    }
}

impl Job<'_> {
    /// Sends an answer. Errors: the agent is gone or has lost interest.
    pub fn answer(&self, value: &impl Serialize, fds: &[BorrowedFd]) -> Result<()> {
        send_json(self.link, b'R', value, fds)
    }

    /// Blocks until the agent says to finish; false when it has given up.
    pub fn committed(&self) -> bool {
        let mut buffer = [0; 1];
        matches!(scm::recv(self.link, &mut buffer), Ok((1, _)))
    }

    /// `path`, absolute: a relative one starts at the working directory.
    pub fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let base = self.inside.base(&self.account);
        format!("{}/{path}", base.trim_end_matches('/'))
    }
}
