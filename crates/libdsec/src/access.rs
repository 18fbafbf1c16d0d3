//! Projects, keys and the audit log.

use std::sync::Arc;

use api::{
    Result,
    arrow::Front,
    iam::{AuditEntry, AuditQuery, KeyInfo, KeyMade, KeyRequest, ProjectInfo, ProjectRequest, ProjectUpdate},
};

use crate::retry;

/// The verbs on projects. `project` is an id or a path, as `root/team/run`; a key sees its own project and all below it.
#[derive(Clone)]
pub struct Projects {
    front: Arc<dyn Front>,
}

impl Projects {
    pub(crate) fn new(front: Arc<dyn Front>) -> Self {
        Self { front }
    }

    /// Errors: `permission_denied`; `not_found` (the parent); `already_exists`; `invalid_argument` where it would have more
    /// than its parent.
    pub async fn create(&self, request: ProjectRequest) -> Result<ProjectInfo> {
        request.validate()?;
        self.front.project_create(request).await
    }

    /// By path.
    pub async fn list(&self) -> Result<Vec<ProjectInfo>> {
        retry::repeat(|| self.front.project_list()).await
    }

    /// What holds, and what is used. Errors: `permission_denied`, `not_found`.
    pub async fn inspect(&self, project: &str) -> Result<ProjectInfo> {
        retry::repeat(|| self.front.project_inspect(project)).await
    }

    /// Bounds it. What runs stays, whatever the bounds. Errors: `permission_denied`, `not_found`, `invalid_argument`.
    pub async fn update(&self, project: &str, update: ProjectUpdate) -> Result<ProjectInfo> {
        retry::repeat(|| self.front.project_update(project, update.clone())).await
    }

    /// Errors: `permission_denied`, `not_found`; `conflict` while it has anything.
    pub async fn remove(&self, project: &str) -> Result<()> {
        self.front.project_remove(project).await
    }

    /// Management calls by keys of this project and of those below it, newest first. Errors: `permission_denied`.
    pub async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditEntry>> {
        retry::repeat(|| self.front.audit_list(query)).await
    }
}

/// The verbs on keys.
#[derive(Clone)]
pub struct Keys {
    front: Arc<dyn Front>,
}

impl Keys {
    pub(crate) fn new(front: Arc<dyn Front>) -> Self {
        Self { front }
    }

    /// A key that may do a part of what this client's may, and ends no later. Never asked twice: the answer is the only one
    /// that holds it. Errors: `permission_denied`, `not_found` (the project), `already_exists`.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::KeyRequest;
    /// let request = KeyRequest { rights: Some("sandbox.*,image.read".parse()?), ..KeyRequest::new("worker-7") };
    /// let made = client.keys().create(request).await?;
    /// println!("{}", made.key);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create(&self, request: KeyRequest) -> Result<KeyMade> {
        request.validate()?;
        self.front.key_create(request).await
    }

    /// Oldest first, revoked ones too.
    pub async fn list(&self) -> Result<Vec<KeyInfo>> {
        retry::repeat(|| self.front.key_list()).await
    }

    /// `key`: an id, or the name of one that works. Errors: `permission_denied`, `not_found`.
    pub async fn revoke(&self, key: &str) -> Result<()> {
        self.front.key_revoke(key).await
    }
}
