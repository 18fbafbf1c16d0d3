//! stop: kill, wait, and remove every trace, in the order that the kernel needs. Idempotent.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use api::{Result, SandboxId, limit};
use rustix::process::{Signal, pidfd_send_signal};

use super::{
    Kept, Shared, blocking, kept, network, process,
    protocol::{Husk, Upper},
    slot,
};
use crate::Record;

/// Half for the processes to die, half for their cgroups to empty.
const PATIENCE: Duration = Duration::from_millis(limit::STOP_MS_MAX / 2);

#[tracing::instrument(level = "debug", name = "runtime.stop", skip_all)]
pub(super) async fn stop(
    shared: &Arc<Shared>,
    id: &SandboxId,
    record: &Record,
    how: fn(&Shared, &SandboxId, &Kept) -> io::Result<()>,
) -> Result<()> {
    let (shared, id, kept) = (shared.clone(), id.clone(), kept(record)?);
    blocking("stop", move || how(&shared, &id, &kept)).await
}

/// Removes all that `kept` and `id` name.
pub(super) fn remove(shared: &Shared, id: &SandboxId, kept: &Kept) -> io::Result<()> {
    reset(shared, id, kept)?;
    shared.volume.remove_snapshots(id.as_str(), |_| true)?;
    shared.names.lock().expect("no panic while held").remove(id);
    Ok(())
}

/// The same, but its snapshots stay, and the sweep spares them: it is to be made again, also where this process has only now
/// heard of it.
pub(super) fn reset(shared: &Shared, id: &SandboxId, kept: &Kept) -> io::Result<()> {
    shared.names.lock().expect("no panic while held").insert(id.clone());
    if let Some(husk) = &kept.husk {
        tracing::debug_span!("runtime.husk").in_scope(|| remove_husk(shared, husk))?;
        if kept.egress {
            network::detach(husk.slot)?;
        }
    }
    if let Upper::Disk(_) = &kept.upper {
        tracing::debug_span!("runtime.upper").in_scope(|| shared.volume.remove_upper(id.as_str()))?;
    }
    remove_run_dir(shared, id)?;
    if let Some(husk) = &kept.husk {
        slot::release(husk.slot)?;
        shared.slots.lock().expect("no panic while held").remove(&husk.slot);
    }
    Ok(())
}

fn remove_husk(shared: &Shared, husk: &Husk) -> io::Result<()> {
    let processes: Vec<OwnedFd> =
        [husk.init, husk.aether].into_iter().filter_map(|p| process::open(p).ok()).collect();
    let cgroups = shared.layout.of(husk.slot);
    cgroups.kill()?;
    for pidfd in &processes {
        // Where the cgroup is gone already, the process may still be there.
        match pidfd_send_signal(pidfd, Signal::KILL) {
            Err(e) if e != rustix::io::Errno::SRCH => return Err(e.into()),
            _ => {}
        }
    }
    processes.iter().try_for_each(|pidfd| process::wait_exit(pidfd.as_fd(), PATIENCE))?;
    cgroups.remove(PATIENCE)
}

pub(super) fn remove_run_dir(shared: &Shared, id: &SandboxId) -> io::Result<()> {
    match fs::remove_dir_all(shared.run_dir(id)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
