//! The verbs of a disk: done by the edge that the id names. A fork is made where its source is, for the disk is there.

use api::{
    Result, SandboxId,
    arrow::BoxStream,
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, SandboxInfo},
};

use crate::Apiserver;

impl Apiserver {
    pub(crate) async fn sandbox_checkpoint(
        &self,
        id: &SandboxId,
        request: CheckpointRequest,
    ) -> Result<Checkpoint> {
        request.validate()?;
        self.edge_of(id)?.checkpoint(id, request).await
    }

    pub(crate) async fn sandbox_rollback(
        &self,
        id: &SandboxId,
        request: RollbackRequest,
    ) -> Result<SandboxInfo> {
        request.validate()?;
        self.edge_of(id)?.rollback(id, request).await
    }

    pub(crate) async fn sandbox_fork(
        &self,
        id: &SandboxId,
        request: ForkRequest,
    ) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.edge_of(id)?.fork(id, request).await
    }

    pub(crate) async fn sandbox_pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        request.validate()?;
        self.edge_of(id)?.pack_diff(id, request).await
    }
}
