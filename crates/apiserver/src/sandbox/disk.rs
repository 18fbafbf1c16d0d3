//! The verbs of a disk: done by the edge that the id names. A fork is made where its source is, for the disk is there.

use api::{
    Result, SandboxId,
    arrow::BoxStream,
    iam::{Action, Amount},
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, SandboxInfo},
};

use super::create::is_certain;
use crate::Session;

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
        mut request: ForkRequest,
    ) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        let edge = self.sandbox(id, Action::SandboxDisk).await?;
        self.sandbox(id, Action::SandboxCreate).await?;
        let source = edge.inspect(id).await?;
        self.check_rate(&source.project, request.count).await?;
        let reservation =
            self.reserve(&source.project, &Amount::of(&source.spec, request.count.into())).await?;
        request.reservation = reservation.as_ref().map(|reservation| reservation.id.clone());
        let forked = edge.fork(id, request).await;
        if forked.as_ref().is_err_and(is_certain) {
            self.give_back(reservation.as_ref()).await;
        }
        forked
    }

    pub(crate) async fn sandbox_pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        request.validate()?;
        self.may(Action::ImageWrite)?;
        self.sandbox(id, Action::SandboxDisk).await?.pack_diff(id, request).await
    }
}
