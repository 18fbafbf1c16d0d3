//! snapshot: the writable part as it is at one instant, with every process of the sandbox held still for it.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use api::{Code, Error, Result, SandboxId};

use super::{Shared, blocking, kept, protocol::Upper};
use crate::Record;

/// For every process inside to come to rest.
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);

#[tracing::instrument(level = "debug", name = "runtime.snapshot", skip_all)]
pub(super) async fn snapshot(
    shared: &Arc<Shared>,
    id: &SandboxId,
    record: &Record,
    name: &str,
) -> Result<PathBuf> {
    let (shared, id, kept, name) = (shared.clone(), id.clone(), kept(record)?, name.to_owned());
    let Upper::Disk(_) = &kept.upper else {
        return Err(Error::new(
            Code::Unsupported,
            format!("{id} keeps its writable part in memory (scratch: memory): there is no disk to copy"),
        ));
    };
    blocking("snapshot", move || {
        let husk = kept.husk.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let _frozen = shared.layout.of(husk.slot).freeze(FREEZE_PATIENCE)?;
        shared.volume.snapshot(id.as_str(), &name)
    })
    .await
}

pub(super) async fn remove(shared: &Arc<Shared>, id: &SandboxId, name: &str) -> Result<()> {
    let (shared, id, name) = (shared.clone(), id.clone(), name.to_owned());
    blocking("remove a snapshot", move || shared.volume.remove_snapshot(id.as_str(), &name)).await
}
