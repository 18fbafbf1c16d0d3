//! adopt: a sandbox of an earlier edge process is found again by its processes.

use std::{io, sync::Arc};

use api::{Error, Result, SandboxId};

use super::{Shared, blocking, kept, process};
use crate::{Handle, Record, TEMPORARY};

pub(super) async fn adopt(shared: &Arc<Shared>, id: &SandboxId, record: &Record) -> Result<Handle> {
    let kept = kept(record)?;
    let husk =
        kept.husk.clone().ok_or_else(|| Error::new(api::Code::SandboxGone, "it was never wholly made"))?;
    let (on_pool, name) = (shared.clone(), id.clone());
    let (init, aether) = blocking("adopt", move || {
        let found = (process::open(husk.init)?, process::open(husk.aether)?);
        if !on_pool.socket(&name).exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // A snapshot that the earlier process was in the middle of.
        on_pool.layout.of(husk.slot).thaw()?;
        on_pool.volume.remove_snapshots(name.as_str(), |snapshot| snapshot.starts_with(TEMPORARY))?;
        on_pool.slots.lock().expect("no panic while held").insert(husk.slot);
        on_pool.names.lock().expect("no panic while held").insert(name);
        Ok(found)
    })
    .await?;
    shared.handle(id, &kept, init, aether).map_err(|error| {
        tracing::error!(%error, "no handle");
        Error::internal("adopt failed on the node")
    })
}
