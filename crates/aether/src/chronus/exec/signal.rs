//! Signals to a command or to all that it started.

use api::{Error, Result, exec::SignalRequest};

use super::{Exec, cgroup::not_killed};

const SIGKILL: i32 = 9;

/// To the first process: nothing happens when it has ended. To the tree: also to what outlived the first process.
pub fn signal(exec: &Exec, request: SignalRequest) -> Result<()> {
    if request.tree {
        let done = match request.signal {
            SIGKILL => exec.cgroup.kill(),
            signal => exec.cgroup.signal(signal),
        };
        return match done {
            // The directory is removed once nothing is left in it.
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound) => Ok(()),
            done => done.map_err(|e| not_killed(&e)),
        };
    }
    let process = exec.state().process.clone();
    process.map_or(Ok(()), |p| p.signal(request.signal)).map_err(|e| {
        eprintln!("aether: exec {}: signal: {e}", exec.id);
        Error::internal("the signal could not be sent")
    })
}
