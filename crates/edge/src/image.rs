//! The verbs of `api::arrow::Images` over the catalogue, on threads that may block.

mod body;
mod environment;
mod export;
mod merge;
mod pull;
mod tag;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use api::{
    Code, Error, Result,
    arrow::{BoxStream, ByteStream, Images, no_store},
    environment::{EnvironmentInfo, EnvironmentRequest},
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest},
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};
use async_trait::async_trait;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    fetch,
    layers::Layers,
    node::{EdgeNode, Parts},
    publish,
};

impl EdgeNode {
    /// Asks the catalogue where blocking is allowed.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Layers) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let layers: Arc<dyn Layers> = self.parts.layers.clone();
        let answer = tokio::task::spawn_blocking(move || question(layers.as_ref())).await;
        answer.map_err(|error| {
            tracing::error!(%error, "image: the catalogue panicked");
            Error::internal("the catalogue failed")
        })?
    }

    /// A place among the exports and merges, held to the end of the work and not of the request.
    fn job(&self) -> Result<OwnedSemaphorePermit> {
        self.parts.image_jobs.clone().try_acquire_owned().map_err(|_| {
            Error::new(Code::RateLimited, "too many exports and merges of images are under way on this node")
        })
    }

    fn counted(&self, mut info: ImageInfo) -> ImageInfo {
        info.in_use = self.parts.uses.sandboxes(&info.digest);
        info.usage = self.parts.usages.of(&info.digest);
        info
    }
}

/// Between looks at the layers that a replaced image left to its sandboxes.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// Removes layers that no image names, once no sandbox lives on them; for as long as the edge does.
pub(crate) async fn keep_swept(parts: Weak<Parts>) {
    while let Some(parts) = parts.upgrade() {
        sweep(&parts).await;
        drop(parts);
        tokio::time::sleep(SWEEP_PERIOD).await;
    }
}

pub(crate) async fn sweep(parts: &Arc<Parts>) {
    let _no_lookup = parts.images.write().await;
    let (layers, uses) = (parts.layers.clone(), parts.uses.clone());
    let swept = tokio::task::spawn_blocking(move || layers.sweep(&|digest| uses.contains(digest))).await;
    match swept {
        Ok(Ok(0)) => {}
        Ok(Ok(layers)) => tracing::info!(layers, "image: layers that nobody names are removed"),
        Ok(Err(error)) => tracing::warn!(%error, "image: layers that nobody names stay"),
        Err(error) => tracing::error!(%error, "image: the catalogue panicked"),
    }
}

#[async_trait]
impl Images for EdgeNode {
    async fn import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        self.parts.check_open()?;
        let (feeder, mut reader) = body::bridge();
        // Side by side; when this future is dropped the feeder goes, and the import fails as cut short.
        let import = self.ask(move |layers| layers.import(&query, &mut reader));
        let feed = feeder.feed(body);
        tokio::pin!(import, feed);
        let result = tokio::select! {
            // It may end before the body does.
            result = &mut import => result,
            () = &mut feed => import.await,
        };
        if let Ok(image) = &result {
            publish::later(&self.parts, image);
            // It may have taken another's name.
            sweep(&self.parts).await;
        }
        result.map(|info| self.counted(info))
    }

    async fn pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        self.start_pull(request).await
    }

    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        let images = self.ask(|layers| layers.list()).await?;
        Ok(images.into_iter().map(|info| self.counted(info)).collect())
    }

    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        fetch::ensure(&self.parts, [reference]).await?;
        let reference = reference.to_owned();
        self.ask(move |layers| layers.inspect(&reference)).await.map(|info| self.counted(info))
    }

    async fn image_remove(&self, reference: &str) -> Result<()> {
        let _no_lookup = self.parts.images.write().await;
        let (reference, uses) = (reference.to_owned(), self.parts.uses.clone());
        self.ask(move |layers| layers.remove(&reference, &|digest| uses.contains(digest))).await
    }

    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        self.merge(reference.to_owned(), request).await
    }

    async fn image_tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        self.tag(reference, request).await
    }

    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream> {
        self.export(reference.to_owned(), query).await
    }

    async fn image_publish(&self, reference: &str) -> Result<PublishReport> {
        self.parts.check_open()?;
        publish::publish(&self.parts, reference).await
    }

    async fn store_list(&self) -> Result<Vec<ImageInfo>> {
        self.ask(|layers| layers.shared().ok_or_else(no_store)?.list()).await
    }

    async fn store_remove(&self, reference: &str) -> Result<()> {
        let reference = reference.to_owned();
        self.ask(move |layers| layers.shared().ok_or_else(no_store)?.remove(&reference)).await
    }

    async fn store_gc(&self, request: GcRequest) -> Result<GcReport> {
        request.validate()?;
        let job = self.job()?;
        self.ask(move |layers| {
            let _job = job;
            layers.shared().ok_or_else(no_store)?.gc(request)
        })
        .await
    }

    async fn image_layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        let reference = reference.to_owned();
        self.ask(move |layers| layers.shared().ok_or_else(no_store)?.layers(&reference)).await
    }

    async fn environment_create(&self, request: EnvironmentRequest) -> Result<EnvironmentInfo> {
        self.create_environment(request).await
    }

    async fn environment_list(&self) -> Result<Vec<EnvironmentInfo>> {
        self.list_environments().await
    }

    async fn environment_inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        self.inspect_environment(reference).await
    }

    async fn environment_remove(&self, reference: &str) -> Result<()> {
        self.remove_environment(reference).await
    }
}
