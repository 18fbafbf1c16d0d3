//! The way inside: exec, files and ports are relayed to the edge that the id names, frames and bytes untouched.

use std::sync::Arc;

use api::{Result, SandboxId, arrow::Chronus};

use crate::Apiserver;

impl Apiserver {
    #[tracing::instrument(level = "debug", name = "apiserver.exec", skip_all)]
    pub(crate) async fn sandbox_exec(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        self.edge_of(id)?.chronus(id).await
    }
}
