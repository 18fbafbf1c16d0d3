//! Stop: done by the edge that the id names; the answer comes when nothing is left.

use api::{Result, SandboxId, iam::Action};

use crate::Session;

impl Session {
    #[tracing::instrument(level = "debug", name = "apiserver.stop", skip_all)]
    pub(crate) async fn sandbox_stop(&self, id: &SandboxId) -> Result<()> {
        self.sandbox(id, Action::SandboxStop).await?.stop(id).await
    }
}
