//! `Edge` over HTTP.

use std::{sync::Arc, time::Duration};

use api::{
    Error, Result, SandboxId,
    arrow::{BoxStream, Chronus, Edge},
    iam::{Tally, TallyQuery},
    limit,
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxInfo, TtlRequest},
};
use async_trait::async_trait;
use futures_util::stream;
use http::Method;
use tokio::time::timeout;

use super::{
    EdgeClient,
    body::Lines,
    encode,
    origin::{DEADLINE, Origin},
    query_of,
};

/// Beside the server's own bound, so that its answer comes first.
pub(super) const SLACK: Duration = Duration::from_secs(5);
const STOP_DEADLINE: Duration = Duration::from_millis(limit::STOP_MS_MAX).saturating_add(SLACK);
/// Until the first event, or a refusal.
const CREATE_DEADLINE: Duration = Duration::from_millis(limit::CREATE_MS_MAX).saturating_add(SLACK);
/// The old one is taken away, then one is made.
const ROLLBACK_DEADLINE: Duration = STOP_DEADLINE.saturating_add(CREATE_DEADLINE);
const PACK_DEADLINE: Duration = Duration::from_millis(limit::PACK_MS_MAX).saturating_add(SLACK);
/// Between two signs of life of a server: it gives one every 15 s.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

#[async_trait]
impl Edge for EdgeClient {
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.events("/v1/sandboxes".into(), request.count, &request).await
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        let path = format!("/v1/sandboxes{}", query_of(&query)?);
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.origin.json(self.origin.request(Method::GET, format!("/v1/sandboxes/{id}")), DEADLINE).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.origin
            .done(self.origin.request(Method::DELETE, format!("/v1/sandboxes/{id}")), STOP_DEADLINE)
            .await
    }

    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        let request = self.origin.request_json(Method::PUT, format!("/v1/sandboxes/{id}/ttl"), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn tally(&self, query: TallyQuery) -> Result<Tally> {
        self.origin.json(self.origin.request_json(Method::POST, "/v1/tally".into(), &query)?, DEADLINE).await
    }

    async fn checkpoint(&self, id: &SandboxId, request: CheckpointRequest) -> Result<Checkpoint> {
        let path = format!("/v1/sandboxes/{id}/checkpoints");
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, CREATE_DEADLINE).await
    }

    async fn checkpoint_list(&self, id: &SandboxId) -> Result<Vec<Checkpoint>> {
        let path = format!("/v1/sandboxes/{id}/checkpoints");
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn checkpoint_remove(&self, id: &SandboxId, name: &str) -> Result<()> {
        let path = format!("/v1/sandboxes/{id}/checkpoints/{}", encode(name));
        self.origin.done(self.origin.request(Method::DELETE, path), CREATE_DEADLINE).await
    }

    async fn rollback(&self, id: &SandboxId, request: RollbackRequest) -> Result<SandboxInfo> {
        let path = format!("/v1/sandboxes/{id}/rollback");
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, ROLLBACK_DEADLINE).await
    }

    async fn fork(&self, id: &SandboxId, request: ForkRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.events(format!("/v1/sandboxes/{id}/fork"), request.count, &request).await
    }

    async fn pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        let path = format!("/v1/sandboxes/{id}/pack_diff");
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, PACK_DEADLINE).await
    }

    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        Ok(Arc::new(self.sandbox(id)))
    }
}

impl EdgeClient {
    /// Asks for `count` sandboxes.
    async fn events(
        &self,
        path: String,
        count: u32,
        request: &impl serde::Serialize,
    ) -> Result<BoxStream<CreateEvent>> {
        let request = self.origin.request_json(Method::POST, path, request)?;
        let response = self.origin.send(request, CREATE_DEADLINE).await?;
        let events = Events {
            lines: Lines::new(response.into_body()),
            origin: self.origin.clone(),
            seen: vec![false; count as usize],
            failed: None,
        };
        Ok(Box::pin(stream::unfold(events, |mut events| async {
            let event = events.next().await?;
            Some((event, events))
        })))
    }
}

/// The events of one create. When the stream breaks, each sandbox that has not been told of is told as failed.
struct Events {
    lines: Lines,
    origin: Origin,
    seen: Vec<bool>,
    failed: Option<Error>,
}

impl Events {
    async fn next(&mut self) -> Option<CreateEvent> {
        if self.failed.is_none() {
            match timeout(SILENCE_MAX, self.lines.next::<CreateEvent>()).await {
                Ok(Some(Ok(event))) => {
                    let (CreateEvent::Created { index, .. } | CreateEvent::Failed { index, .. }) = &event;
                    if let Some(seen) = self.seen.get_mut(*index as usize) {
                        *seen = true;
                    }
                    return Some(event);
                }
                Ok(Some(Err(e))) => self.failed = Some(e),
                Ok(None) | Err(_) => self.failed = Some(self.origin.ended("every sandbox was told of")),
            }
        }
        let index = self.seen.iter().position(|seen| !seen)?;
        self.seen[index] = true;
        Some(CreateEvent::Failed { index: index as u32, error: self.failed.clone()? })
    }
}
