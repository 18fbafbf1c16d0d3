//! The verbs of a disk: done by the edge that the id names. A fork is made where its source is, for the disk is there.

use api::{
    Result, SandboxId,
    arrow::BoxStream,
    iam::Action,
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, SandboxInfo},
};

use crate::{Session, quota::Terms};

impl Session {
    pub(crate) async fn sandbox_checkpoint(
        &self,
        id: &SandboxId,
        request: CheckpointRequest,
    ) -> Result<Checkpoint> {
        request.validate()?;
        self.sandbox(id, Action::SandboxDisk).await?.checkpoint(id, request).await
    }

    pub(crate) async fn sandbox_rollback(
        &self,
        id: &SandboxId,
        request: RollbackRequest,
    ) -> Result<SandboxInfo> {
        request.validate()?;
        self.sandbox(id, Action::SandboxDisk).await?.rollback(id, request).await
    }

    /// The new ones belong to the project of their source, and take of its quota.
    pub(crate) async fn sandbox_fork(
        &self,
        id: &SandboxId,
        request: ForkRequest,
    ) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        let edge = self.sandbox(id, Action::SandboxDisk).await?;
        self.sandbox(id, Action::SandboxCreate).await?;
        let source = edge.inspect(id).await?;
        let keyed = request.idempotency_key.is_some();
        let all = (&source.spec, request.count);
        self.within_quota(&source.project, all, keyed, async |Terms { reservation, made_only }| {
            edge.fork(id, ForkRequest { reservation, made_only, ..request }).await
        })
        .await
    }

    pub(crate) async fn sandbox_pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        request.validate()?;
        self.may(Action::ImageWrite)?;
        self.sandbox(id, Action::SandboxDisk).await?.pack_diff(id, request).await
    }
}
