//! Projects, keys and the audit log: asked of iam, and noted.

use api::{
    Result,
    arrow::Access,
    iam::{AuditEntry, AuditQuery, KeyInfo, KeyMade, KeyRequest, ProjectInfo, ProjectRequest, ProjectUpdate},
};
use async_trait::async_trait;

use crate::session::Session;

#[async_trait]
impl Access for Session {
    async fn project_create(&self, request: ProjectRequest) -> Result<ProjectInfo> {
        let parent = request.parent.as_deref().unwrap_or(&self.who.project);
        let target = format!("{parent}/{}", request.name);
        self.noted("project.create", &target, self.shared.iam.project_create(&self.who, &request)).await
    }
    async fn project_list(&self) -> Result<Vec<ProjectInfo>> {
        self.shared.take_tallies().await;
        self.shared.iam.project_list(&self.who).await
    }
    async fn project_inspect(&self, project: &str) -> Result<ProjectInfo> {
        self.shared.take_tallies().await;
        self.shared.iam.project_inspect(&self.who, project).await
    }
    async fn project_update(&self, project: &str, update: ProjectUpdate) -> Result<ProjectInfo> {
        self.noted("project.update", project, self.shared.iam.project_update(&self.who, project, &update))
            .await
    }
    async fn project_remove(&self, project: &str) -> Result<()> {
        self.shared.take_tallies().await;
        self.noted("project.remove", project, self.shared.iam.project_remove(&self.who, project)).await
    }
    async fn key_create(&self, request: KeyRequest) -> Result<KeyMade> {
        self.noted("key.create", &request.name, self.shared.iam.key_create(&self.who, &request)).await
    }
    async fn key_list(&self) -> Result<Vec<KeyInfo>> {
        self.shared.iam.key_list(&self.who).await
    }
    async fn key_revoke(&self, key: &str) -> Result<()> {
        self.noted("key.revoke", key, self.shared.iam.key_revoke(&self.who, key)).await
    }
    async fn audit_list(&self, query: AuditQuery) -> Result<Vec<AuditEntry>> {
        self.shared.iam.audit_list(&self.who, query.count_max).await
    }
}
