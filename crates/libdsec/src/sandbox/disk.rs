//! The disk at one instant: checkpoint, rollback, fork, pack_diff. Processes are not part of it.

use api::{
    Result,
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::SandboxInfo,
};

use super::{Sandbox, create::Created};
use crate::retry;

impl Sandbox {
    /// Keeps the disk as it is now, to go back to. `name` is unique in the sandbox; None makes one up.
    /// Errors: `already_exists`, `quota_exceeded` (8 at most), `unsupported` (scratch: memory), `conflict`.
    pub async fn checkpoint(&self, name: Option<&str>) -> Result<Checkpoint> {
        let request = CheckpointRequest { name: name.map(str::to_owned) };
        request.validate()?;
        self.front.checkpoint(self.id(), request).await
    }

    /// Oldest first.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        retry::repeat(|| self.front.checkpoint_list(self.id())).await
    }

    /// Errors: `not_found`.
    pub async fn remove_checkpoint(&self, name: &str) -> Result<()> {
        self.front.checkpoint_remove(self.id(), name).await
    }

    /// Ends every process, makes the disk what it was at the checkpoint, and runs again under the same id. Commands that
    /// ran have ended with reason `sandbox_gone`. Errors: `not_found`, `conflict`.
    pub async fn rollback(&self, checkpoint: &str) -> Result<SandboxInfo> {
        let request = RollbackRequest { checkpoint: checkpoint.to_owned() };
        request.validate()?;
        self.front.rollback(self.id(), request).await
    }

    /// New sandboxes with the same spec, each disk a copy of this one; no process comes along.
    ///
    /// ```no_run
    /// # async fn demo(sandbox: libdsec::Sandbox) -> libdsec::Result<()> {
    /// let mut children = sandbox.fork(libdsec::ForkRequest::new(4));
    /// while let Some(child) = children.next().await {
    ///     child?.exec(["make", "test"]).output().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fork(&self, request: ForkRequest) -> Created {
        Created::forked(self.front.clone(), self.id().clone(), request)
    }

    /// What this sandbox has written, made a layer and an image that starts new ones. It runs on meanwhile.
    /// Errors: `conflict`, `unsupported` (scratch: memory), `invalid_argument` (a device, a bad pattern).
    pub async fn pack_diff(&self, request: PackRequest) -> Result<PackReport> {
        request.validate()?;
        self.front.pack_diff(self.id(), request).await
    }
}
