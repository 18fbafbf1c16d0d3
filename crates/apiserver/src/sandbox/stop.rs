//! Stop: done by the edge that the id names; the answer comes when nothing is left.

use api::{Result, SandboxId};

use crate::Apiserver;

impl Apiserver {
    #[tracing::instrument(level = "debug", name = "apiserver.stop", skip_all)]
    pub(crate) async fn sandbox_stop(&self, id: &SandboxId) -> Result<()> {
        self.edge_of(id)?.stop(id).await
    }
}
