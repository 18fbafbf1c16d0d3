//! Inspect: asked of the edge that the id names.

use api::{Result, SandboxId, spec::SandboxInfo};

use crate::Apiserver;

impl Apiserver {
    pub(crate) async fn sandbox_inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.edge_of(id)?.inspect(id).await
    }
}
