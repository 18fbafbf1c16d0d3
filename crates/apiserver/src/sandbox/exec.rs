//! The way inside: exec, files and ports are relayed to the edge that the id names, frames and bytes untouched.

use std::sync::Arc;

use api::{Result, SandboxId, arrow::Chronus};

use crate::{Session, inside::Inside};

impl Session {
    #[tracing::instrument(level = "debug", name = "apiserver.exec", skip_all)]
    pub(crate) async fn sandbox_exec(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        let edge = self.shared.edge_of(id)?;
        if self.is_owner() {
            return edge.chronus(id).await;
        }
        let (kind, who) = (self.kind_of(id, edge).await?, self.who.clone());
        let chronus = edge.chronus(id).await?;
        Ok(if Inside::is_open(&who, kind) { chronus } else { Arc::new(Inside { chronus, who, kind }) })
    }
}
