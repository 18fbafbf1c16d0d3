//! From a request to a process inside: two forks, one report.
//!
//! ```text
//! agent --clone3 into cgroup x<n>--> A: joins v1 limits, enters every namespace
//!                                      --clone3 CLONE_PARENT--> G: child::become_command
//!   <--- 'P' pid of G --- A, which ends
//!   <--- 'M' terminal / 'N' not started / 'E' error --- G        end of file: G has become the command
//! ```
//! G is a child of the agent in the sandbox's pid namespace, so the agent waits for it and reaps it.

mod child;
mod plan;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use api::{
    Code, Error, Result,
    exec::{ExecRequest, Stdin},
};
use linux::{
    clone::{self, Args},
    scm,
};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use tokio::io::{Interest, unix::AsyncFd};

use super::cgroup::Cgroup;
use crate::{
    inside::{Depth, Inside, not_forked, step},
    process::{self, Ended, Process},
};

/// From the fork to the execve. Only a sandbox that is stuck takes longer than milliseconds. Shorter than the edge's patience:
/// what the edge has given up must not start.
const START_DEADLINE: Duration = Duration::from_secs(8);
/// One report.
const REPORT_BYTES_MAX: usize = 16 << 10;

/// Why the command did not start: what a shell would say.
#[derive(Debug, Serialize, Deserialize)]
pub struct NotStarted {
    pub code: i32,
    pub message: String,
}

/// A command that runs, or one that could not start.
pub struct Launched {
    pub process: Option<Process>,
    pub not_started: Option<NotStarted>,
    pub stdin: Option<OwnedFd>,
    /// stdout, stderr; or the terminal's master alone.
    pub outputs: Vec<OwnedFd>,
}

/// Pipes of a command: the agent's ends and the child's.
struct Pipes {
    stdin: Option<OwnedFd>,
    outputs: Vec<OwnedFd>,
    theirs: [Option<OwnedFd>; 3],
}

fn pipes(request: &ExecRequest) -> io::Result<Pipes> {
    let mut pipes = Pipes { stdin: None, outputs: Vec::new(), theirs: [None, None, None] };
    if request.pty.is_some() {
        return Ok(pipes);
    }
    let pipe = || -> io::Result<(OwnedFd, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // The owner is not known inside, so without this nobody there could open /dev/stdout or /dev/stdin.
        rustix::fs::fchmod(&write, rustix::fs::Mode::from_raw_mode(0o666))?;
        Ok((read, write))
    };
    if request.stdin != Stdin::None {
        let (read, write) = pipe()?;
        rustix::io::ioctl_fionbio(&write, true)?;
        pipes.theirs[0] = Some(read);
        pipes.stdin = Some(write);
    }
    for theirs in &mut pipes.theirs[1..] {
        let (read, write) = pipe()?;
        rustix::io::ioctl_fionbio(&read, true)?;
        pipes.outputs.push(read);
        *theirs = Some(write);
    }
    Ok(pipes)
}

/// Starts the command of `request` in `cgroup`.
pub async fn launch(inside: &Inside, cgroup: &Cgroup, request: &ExecRequest) -> Result<Launched> {
    let fail = |e: io::Error| {
        eprintln!("aether: launch: {e}");
        Error::internal("cannot make the pipes of a command")
    };
    let Pipes { stdin, mut outputs, theirs } = pipes(request).map_err(fail)?;
    let (ours, report) = scm::pair().map_err(fail)?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(|e| fail(e.into()))?;
    let link = process::ready(ours, Interest::READABLE).map_err(fail)?;
    let oom_kills = inside.oom_kills();

    let args = Args { cgroup: Some(cgroup.directory()), ..Args::default() };
    let outer =
        clone::spawn(&args, || outer(inside, request, theirs.each_ref().map(Option::as_ref), &report))
            .map_err(|e| not_forked(&e))?;
    drop((theirs, report));
    let outer = Process::new(outer.pidfd).map_err(fail)?;

    let told = tokio::time::timeout(START_DEADLINE, listen(&link)).await;
    let told = match told {
        Ok(told) => told,
        Err(_) => {
            let _ = cgroup.kill();
            let late =
                Error::new(Code::DeadlineExceeded, "the command did not start in time: the sandbox is stuck");
            Told { error: Some(late), ..Told::default() }
        }
    };
    let ended = outer.ended().await.map_err(fail)?;
    let mut process = told.pid.map(Process::of_child).transpose().map_err(fail)?;
    let failed = told.error.or_else(|| process.is_none().then(|| vanished(inside, ended, oom_kills)));
    if let Some(error) = failed {
        let _ = cgroup.kill();
        reap(process.as_mut()).await;
        return Err(error);
    }
    if told.not_started.is_some() {
        reap(process.as_mut()).await;
        return Ok(Launched {
            process: None,
            not_started: told.not_started,
            stdin: None,
            outputs: Vec::new(),
        });
    }
    outputs.extend(told.terminal);
    Ok(Launched { process, not_started: None, stdin, outputs })
}

async fn reap(process: Option<&mut Process>) {
    if let Some(process) = process {
        let _ = process.ended().await;
        process.forget();
    }
}

/// The outer child ended without a word.
fn vanished(inside: &Inside, ended: Ended, oom_kills: u64) -> Error {
    match ended {
        Ended::Signal(9) if inside.oom_kills() > oom_kills => Error::new(
            Code::OomKilled,
            "no memory left in the sandbox to start a command: end something, or create it with more",
        ),
        ended => {
            eprintln!("aether: launch: the outer child ended early: {ended:?}");
            Error::new(Code::SandboxBroken, "the sandbox cannot start a command any more: stop it")
        }
    }
}

#[derive(Default)]
struct Told {
    pid: Option<u32>,
    terminal: Option<OwnedFd>,
    not_started: Option<NotStarted>,
    error: Option<Error>,
}

/// Takes reports until every child's end is closed.
async fn listen(link: &AsyncFd<OwnedFd>) -> Told {
    let mut told = Told::default();
    let mut buffer = vec![0; REPORT_BYTES_MAX];
    loop {
        let Ok(mut guard) = link.readable().await else { return told };
        let Ok(got) = guard.try_io(|fd| scm::recv(fd, &mut buffer)) else { continue };
        let Ok((length, fds)) = got else { return told };
        let Some((kind, body)) = buffer[..length].split_first() else { return told };
        match kind {
            b'P' => told.pid = body.try_into().ok().map(u32::from_be_bytes),
            b'M' => told.terminal = fds.into_iter().next(),
            b'N' => told.not_started = serde_json::from_slice(body).ok(),
            _ => told.error = serde_json::from_slice(body).ok().or(Some(Error::internal("a garbled report"))),
        }
    }
}

fn tell(report: &OwnedFd, kind: u8, value: &impl Serialize) {
    let mut message = vec![kind];
    message.extend(serde_json::to_vec(value).unwrap_or_default());
    message.truncate(REPORT_BYTES_MAX);
    let _ = scm::send(report, &message, &[]);
}

/// Child A.
fn outer(inside: &Inside, request: &ExecRequest, stdio: [Option<&OwnedFd>; 3], report: &OwnedFd) -> i32 {
    match make_inner(inside, request, stdio, report) {
        Ok(pid) => {
            let mut message = [b'P', 0, 0, 0, 0];
            message[1..].copy_from_slice(&pid.to_be_bytes());
            i32::from(scm::send(report, &message, &[]).is_err())
        }
        Err(error) => {
            tell(report, b'E', &error);
            1
        }
    }
}

fn make_inner(
    inside: &Inside,
    request: &ExecRequest,
    stdio: [Option<&OwnedFd>; 3],
    report: &OwnedFd,
) -> Result<u32> {
    step("limits", inside.join_limits())?;
    step("namespaces", inside.enter(Depth::All))?;
    let args = Args { sibling: true, ..Args::default() };
    let stdio = stdio.map(|fd| fd.map(AsFd::as_fd));
    let inner = clone::spawn(&args, || child::become_command(inside, request, stdio, report));
    inner.map(|c| c.pid).map_err(|e| not_forked(&e))
}
