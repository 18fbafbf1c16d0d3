//! Environments: named compositions.

use std::sync::Arc;

use api::{
    Result,
    arrow::Front,
    environment::{EnvironmentInfo, EnvironmentRequest},
};

use crate::retry;

/// The verbs on environments. `reference` is `name` or `name:version`; it works as a spec's `image` as well.
#[derive(Clone)]
pub struct Environments {
    front: Arc<dyn Front>,
}

impl Environments {
    pub(crate) fn new(front: Arc<dyn Front>) -> Self {
        Self { front }
    }

    /// Names a composition. Errors: `not_found` for a part; `invalid_argument` for one of another kind; `already_exists`
    /// where the name and version mean something else.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::{EnvironmentRequest, LayerKind, SandboxSpec};
    /// let mut request = EnvironmentRequest::new("task-17", "debian:12");
    /// request.workspaces = vec!["task-17".into()];
    /// request.toolkits = vec!["tools".into()];
    /// request.follow = vec![LayerKind::Toolkit];
    /// client.environments().create(request).await?;
    /// let sandbox = client.create(SandboxSpec::new("task-17")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create(&self, request: EnvironmentRequest) -> Result<EnvironmentInfo> {
        request.validate()?;
        // Asked again it is the same environment.
        retry::repeat(|| self.front.environment_create(request.clone())).await
    }

    pub async fn list(&self) -> Result<Vec<EnvironmentInfo>> {
        retry::repeat(|| self.front.environment_list()).await
    }

    /// Errors: `not_found`.
    pub async fn inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        retry::repeat(|| self.front.environment_inspect(reference)).await
    }

    /// Errors: `not_found`; `conflict` while a sandbox lives on it.
    pub async fn remove(&self, reference: &str) -> Result<()> {
        self.front.environment_remove(reference).await
    }
}
