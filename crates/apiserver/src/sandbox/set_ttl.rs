//! TTL: set by the edge that the id names.

use api::{
    Result, SandboxId,
    iam::Action,
    spec::{SandboxInfo, TtlRequest},
};

use crate::Session;

impl Session {
    pub(crate) async fn sandbox_set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        request.validate()?;
        self.sandbox(id, Action::SandboxStop).await?.set_ttl(id, request).await
    }
}
