//! The way inside: exec, files and ports are relayed to the edge that the id names, frames and bytes untouched.

use std::sync::Arc;

use api::{Result, SandboxId, arrow::Chronus};
use rpc::is_whole_inside;

use crate::{Session, inside::Inside};

impl Session {
    #[tracing::instrument(level = "debug", name = "apiserver.exec", skip_all)]
    pub(crate) async fn sandbox_exec(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        let edge = self.shared.edge_of(id)?;
        if self.is_owner() && !self.by_token {
            return edge.chronus(id).await;
        }
        let (project, kind) = self.whose(id, edge).await?;
        let mut who = self.who.clone();
        if self.by_token {
            // As good as the sandbox's project is now.
            who.rights = self.shared.iam.rights_of(&project).await?;
        }
        let chronus = edge.chronus(id).await?;
        Ok(if is_whole_inside(who.rights, kind) { chronus } else { Arc::new(Inside { chronus, who, kind }) })
    }
}
