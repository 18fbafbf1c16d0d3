//! TTL: set by the edge that the id names.

use api::{
    Result, SandboxId,
    spec::{SandboxInfo, TtlRequest},
};

use crate::Apiserver;

impl Apiserver {
    pub(crate) async fn sandbox_set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        request.validate()?;
        self.edge_of(id)?.set_ttl(id, request).await
    }
}
