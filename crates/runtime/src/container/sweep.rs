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
        for id in self.unknown(&self.volume.uppers())? {
            self.volume.remove_upper(id.as_str())?;
        }
        for id in self.unknown(&self.volume.snapshots())? {
            self.volume.remove_snapshots(id.as_str(), |_| true)?;
        }
        for id in self.unknown(&self.config.data.join("run"))? {
            stop::remove_run_dir(self, &id)?;
        }
        Ok(())
    }

    /// Entries of `dir` that are named like a sandbox that this process does not have.
    fn unknown(&self, dir: &Path) -> io::Result<Vec<SandboxId>> {
        let names = self.names.lock().expect("no panic while held").clone();
        let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
        let ids = entries.iter().filter_map(|e| e.file_name().to_str()?.parse::<SandboxId>().ok());
        Ok(ids.filter(|id| !names.contains(id)).collect())
    }
}
