//! From started to ended: who is spawned for an exec, its clock, its exit.

use std::{io, sync::Arc, time::Duration};

use api::exec::{Exit, ExitReason, Stdin};
use tokio::{
    io::Interest,
    time::{sleep, timeout},
};

use super::{Exec, collect, feed, launch::Launched};
use crate::{
    heap::trim_later,
    inside::Inside,
    process::{self, Ended, Process},
};

/// SIGKILL as a shell reports it.
const KILLED_CODE: i32 = 137;
/// Looks at a directory that background processes hold: at first, and at most.
const REMOVE_PERIOD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Sets an exec going.
pub fn run(
    exec: Arc<Exec>,
    inside: Arc<Inside>,
    launched: Launched,
    stdin: Stdin,
    timeout_ms: Option<u64>,
    oom_kills: u64,
) {
    let Some(process) = launched.process else {
        let message = launched.not_started.unwrap_or_else(|| unreachable!("no process and no reason"));
        let mut state = exec.state();
        state.logs[1].append(message.message.as_bytes());
        state.logs.iter_mut().for_each(|l| l.closed = true);
        state.feed.give_up();
        state.exit = Some(exit(&exec, message.code, ExitReason::NotStarted, None));
        return;
    };
    let process = Arc::new(process);
    exec.state().process = Some(process.clone());
    if let Err(e) = connect(&exec, launched.stdin, launched.outputs, stdin) {
        eprintln!("aether: exec {}: {e}", exec.id);
        let _ = exec.cgroup.kill();
    }
    tokio::spawn(supervise(exec, inside, process, timeout_ms, oom_kills));
}

/// Spawns what moves bytes. Needs the runtime.
fn connect(
    exec: &Arc<Exec>,
    stdin: Option<std::os::fd::OwnedFd>,
    outputs: Vec<std::os::fd::OwnedFd>,
    source: Stdin,
) -> io::Result<()> {
    let mut outputs = outputs.into_iter();
    let input = if exec.pty {
        let master = outputs.next().ok_or(io::ErrorKind::NotFound)?;
        let master = Arc::new(process::ready(master, Interest::READABLE | Interest::WRITABLE)?);
        let mut state = exec.state();
        state.terminal = Some(master.clone());
        state.logs[1].closed = true;
        drop(state);
        tokio::spawn(collect::collect(exec.clone(), 0, master.clone()));
        Some(master)
    } else {
        for (index, fd) in outputs.enumerate() {
            let fd = Arc::new(process::ready(fd, Interest::READABLE)?);
            tokio::spawn(collect::collect(exec.clone(), index, fd));
        }
        stdin.map(|fd| process::ready(fd, Interest::WRITABLE)).transpose()?.map(Arc::new)
    };
    match source {
        Stdin::None => exec.state().feed.close(),
        Stdin::Data(data) => exec.state().feed.fill(data.0),
        Stdin::Stream => {}
    }
    match input {
        Some(input) => drop(tokio::spawn(feed::feed(exec.clone(), input))),
        None => exec.state().feed.give_up(),
    }
    Ok(())
}

async fn supervise(
    exec: Arc<Exec>,
    inside: Arc<Inside>,
    process: Arc<Process>,
    timeout_ms: Option<u64>,
    oom_kills: u64,
) {
    let (ended, timed_out) = match timeout_ms {
        None => (process.ended().await, false),
        Some(ms) => match timeout(Duration::from_millis(ms), process.ended()).await {
            Ok(ended) => (ended, false),
            Err(_) => {
                if let Err(e) = exec.cgroup.kill() {
                    eprintln!("aether: exec {}: cgroup.kill: {e}", exec.id);
                    let _ = process.signal(9);
                }
                (process.ended().await, true)
            }
        },
    };
    let ended = ended.unwrap_or(Ended::Signal(9));
    let by_oom = || inside.explain_by_oom(oom_kills);
    let (code, reason, signal) = match ended {
        _ if timed_out => (KILLED_CODE, ExitReason::Timeout, Some(9)),
        // A shell says 137 of a child that was killed.
        Ended::Code(KILLED_CODE) if by_oom() => (KILLED_CODE, ExitReason::OomKilled, None),
        Ended::Code(code) => (code, ExitReason::Exited, None),
        Ended::Signal(9) if by_oom() => (KILLED_CODE, ExitReason::OomKilled, Some(9)),
        Ended::Signal(n) => (128 + n, ExitReason::Signal, Some(n)),
    };
    {
        let mut state = exec.state();
        state.exit = Some(exit(&exec, code, reason, signal));
        state.terminal = None;
        state.process = None;
    }
    exec.exited.send_replace(true);
    exec.changed.notify_waiters();
    drop(process);
    trim_later();
    let mut period = REMOVE_PERIOD.0;
    while !exec.cgroup.try_remove() {
        sleep(period).await;
        period = (period * 2).min(REMOVE_PERIOD.1);
    }
}

fn exit(exec: &Exec, code: i32, reason: ExitReason, signal: Option<i32>) -> Exit {
    Exit { code, reason, signal, duration_ms: exec.duration_ms() }
}
