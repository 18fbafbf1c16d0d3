//! sweep: what an earlier edge of this data directory left and nobody adopted: slots, uppers, run directories.

use std::{collections::HashSet, fs, io, path::Path, time::Duration};

use api::SandboxId;

use super::{Shared, network, slot, stop};

const PATIENCE: Duration = Duration::from_secs(5);

impl Shared {
    /// Spares the slots that `pooled` tells of and all that this process has created or adopted.
    pub(super) fn sweep(&self, pooled: impl FnOnce() -> io::Result<Vec<u32>>) -> io::Result<()> {
        let _nobody_claims = self.claiming.write().expect("no panic while held");
        // First what is held, then what of it is pooled: a husk that forge begins in between is not looked at.
        let held = slot::held_by(&self.config.data)?;
        let pooled = pooled()?;
        let known: HashSet<u32> = self.slots.lock().expect("no panic while held").clone();
        for slot in held {
            if known.contains(&slot) || pooled.contains(&slot) {
                continue;
            }
            tracing::warn!(slot, "sweeping a slot that nobody knows");
            let cgroups = self.layout.of(slot);
            cgroups.kill()?;
            cgroups.remove(PATIENCE)?;
            network::detach(slot)?;
            slot::release(slot)?;
        }
        self.sweep_dir(&self.volume.uppers(), |id| self.volume.remove_upper(id.as_str()))?;
        self.sweep_dir(&self.volume.snapshots(), |id| self.volume.remove_snapshots(id.as_str(), |_| true))?;
        self.sweep_dir(&self.config.data.join("run"), |id| stop::remove_run_dir(self, id))
    }

    /// Removes entries of `dir` that are named like a sandbox that this process does not have. Nobody becomes one that it has
    /// while it is removed: a rollback that is done again makes what has the name of what was left.
    fn sweep_dir(&self, dir: &Path, remove: impl Fn(&SandboxId) -> io::Result<()>) -> io::Result<()> {
        for entry in fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()? {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()) else {
                continue;
            };
            let names = self.names.lock().expect("no panic while held");
            if !names.contains(&id) {
                remove(&id)?;
            }
        }
        Ok(())
    }
}
