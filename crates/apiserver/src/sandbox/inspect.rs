//! Inspect: asked of the edge that the id names.

use api::{Result, SandboxId, iam::Action, spec::SandboxInfo};

use crate::Session;

impl Session {
    pub(crate) async fn sandbox_inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.sandbox(id, Action::SandboxRead).await?.inspect(id).await
    }
}
