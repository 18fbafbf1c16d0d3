//! `Access` over HTTP.

use api::{
    Result,
    arrow::Access,
    iam::{AuditEntry, AuditQuery, KeyInfo, KeyMade, KeyRequest, ProjectInfo, ProjectRequest, ProjectUpdate},
};
use async_trait::async_trait;
use http::Method;

use super::{EdgeClient, encode, origin::DEADLINE, query_of};

#[async_trait]
impl Access for EdgeClient {
    async fn project_create(&self, request: ProjectRequest) -> Result<ProjectInfo> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, "/v1/projects".into(), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn project_list(&self) -> Result<Vec<ProjectInfo>> {
        self.origin.json(self.origin.request(Method::GET, "/v1/projects".into()), DEADLINE).await
    }

    async fn project_inspect(&self, project: &str) -> Result<ProjectInfo> {
        let path = format!("/v1/projects/{}", encode(project));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn project_update(&self, project: &str, update: ProjectUpdate) -> Result<ProjectInfo> {
        let path = format!("/v1/projects/{}", encode(project));
        self.origin.json(self.origin.request_json(Method::PATCH, path, &update)?, DEADLINE).await
    }

    async fn project_remove(&self, project: &str) -> Result<()> {
        let path = format!("/v1/projects/{}", encode(project));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }

    async fn key_create(&self, request: KeyRequest) -> Result<KeyMade> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, "/v1/keys".into(), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn key_list(&self) -> Result<Vec<KeyInfo>> {
        self.origin.json(self.origin.request(Method::GET, "/v1/keys".into()), DEADLINE).await
    }

    async fn key_revoke(&self, key: &str) -> Result<()> {
        let path = format!("/v1/keys/{}", encode(key));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }

    async fn audit_list(&self, query: AuditQuery) -> Result<Vec<AuditEntry>> {
        let path = format!("/v1/audit{}", query_of(&query)?);
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }
}
