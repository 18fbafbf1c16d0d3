//! `Images` over HTTP.

use std::time::Duration;

use api::{
    Result,
    arrow::{BoxStream, ByteStream, Images},
    environment::{EnvironmentInfo, EnvironmentRequest},
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest, RESOLVE_MS_MAX},
    store::{GcReport, GcRequest, ImageListQuery, LayerStatus, PublishReport},
};
use async_trait::async_trait;
use futures_util::stream;
use http::Method;
use tokio::time::timeout;

use super::{
    EdgeClient,
    body::{self, Lines},
    edge::{SILENCE_MAX, SLACK},
    encode,
    origin::{DEADLINE, NO_DEADLINE, Origin},
    query_of,
};

/// Until the first event, or a refusal.
const PULL_DEADLINE: Duration = Duration::from_millis(RESOLVE_MS_MAX).saturating_add(SLACK);

#[async_trait]
impl Images for EdgeClient {
    async fn import(&self, query: ImportQuery, bytes: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        let path = format!("/v1/images/import{}", query_of(&query)?);
        let request = self.origin.request(Method::POST, path).map(|_| body::stream(bytes));
        // As long as the archive is.
        self.origin.json(request, NO_DEADLINE).await
    }

    async fn pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, "/v1/images/pull".into(), &request)?;
        let response = self.origin.send(request, PULL_DEADLINE).await?;
        let pulling =
            Pulling { lines: Lines::new(response.into_body()), origin: self.origin.clone(), ended: false };
        Ok(Box::pin(stream::unfold(pulling, |mut pulling| async {
            let event = pulling.next().await?;
            Some((event, pulling))
        })))
    }

    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        self.origin.json(self.origin.request(Method::GET, "/v1/images".into()), DEADLINE).await
    }

    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        let path = format!("/v1/images/{}", encode(reference));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn image_remove(&self, reference: &str) -> Result<()> {
        let path = format!("/v1/images/{}", encode(reference));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }

    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        request.validate()?;
        let path = format!("/v1/images/{}/merge", encode(reference));
        // As long as its layers are.
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, NO_DEADLINE).await
    }

    async fn image_tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        request.validate()?;
        let path = format!("/v1/images/{}/tag", encode(reference));
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, DEADLINE).await
    }

    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream> {
        let path = format!("/v1/images/{}/export{}", encode(reference), query_of(&query)?);
        let response = self.origin.send(self.origin.request(Method::GET, path), DEADLINE).await?;
        Ok(response.into_body().bytes())
    }

    async fn image_publish(&self, reference: &str) -> Result<PublishReport> {
        let path = format!("/v1/images/{}/publish", encode(reference));
        // As long as the image is.
        self.origin.json(self.origin.request(Method::POST, path), NO_DEADLINE).await
    }

    async fn store_list(&self) -> Result<Vec<ImageInfo>> {
        let path = format!("/v1/images{}", query_of(&ImageListQuery { store: true })?);
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn store_remove(&self, reference: &str) -> Result<()> {
        let path = format!("/v1/store/images/{}", encode(reference));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }

    async fn store_gc(&self, request: GcRequest) -> Result<GcReport> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, "/v1/store/gc".into(), &request)?;
        // As long as the store is large.
        self.origin.json(request, NO_DEADLINE).await
    }

    async fn image_layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        let path = format!("/v1/images/{}/layers", encode(reference));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn environment_create(&self, request: EnvironmentRequest) -> Result<EnvironmentInfo> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, "/v1/environments".into(), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn environment_list(&self) -> Result<Vec<EnvironmentInfo>> {
        self.origin.json(self.origin.request(Method::GET, "/v1/environments".into()), DEADLINE).await
    }

    async fn environment_inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        let path = format!("/v1/environments/{}", encode(reference));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn environment_remove(&self, reference: &str) -> Result<()> {
        let path = format!("/v1/environments/{}", encode(reference));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }
}

/// The events of one pull. A stream that breaks is an error, never an end.
struct Pulling {
    lines: Lines,
    origin: Origin,
    ended: bool,
}

impl Pulling {
    async fn next(&mut self) -> Option<Result<PullEvent>> {
        if self.ended {
            return None;
        }
        let event = match timeout(SILENCE_MAX, self.lines.next::<PullEvent>()).await {
            Ok(Some(event)) => event,
            Ok(None) | Err(_) => Err(self.origin.ended("the image was pulled")),
        };
        self.ended = !matches!(event, Ok(PullEvent::Progress(_)));
        Some(event)
    }
}
