//! The catalogue of layers.

mod export;
pub mod import;
mod merge;
pub mod pack;
mod prune;
pub mod pull;
mod tag;

use std::sync::Arc;

use api::{
    Result,
    arrow::Front,
    image::ImageInfo,
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};

pub use import::Progress;

use crate::retry;

/// The verbs on images. `reference` is `name`, `name:version` or a digest.
#[derive(Clone)]
pub struct Images {
    front: Arc<dyn Front>,
}

impl Images {
    pub(crate) fn new(front: Arc<dyn Front>) -> Self {
        Self { front }
    }

    pub async fn list(&self) -> Result<Vec<ImageInfo>> {
        retry::repeat(|| self.front.image_list()).await
    }

    /// Errors: `not_found`.
    pub async fn inspect(&self, reference: &str) -> Result<ImageInfo> {
        retry::repeat(|| self.front.image_inspect(reference)).await
    }

    /// Errors: `not_found`; `conflict` while a sandbox lives on it.
    pub async fn remove(&self, reference: &str) -> Result<()> {
        self.front.image_remove(reference).await
    }

    /// Sends an image to the store that nodes share; what is there already is not sent again. Errors: `not_found`,
    /// `unsupported` (the node has no store), `no_capacity` (it cannot be reached).
    pub async fn publish(&self, reference: &str) -> Result<PublishReport> {
        self.front.image_publish(reference).await
    }

    /// What the store has.
    pub async fn list_store(&self) -> Result<Vec<ImageInfo>> {
        retry::repeat(|| self.front.store_list()).await
    }

    /// Removes a name from the store, or an image that has none by its digest. Its data goes with the next
    /// [`Images::gc_store`]; nodes that have the image keep what they have fetched. Errors: `not_found`, `conflict`.
    pub async fn remove_store(&self, reference: &str) -> Result<()> {
        self.front.store_remove(reference).await
    }

    /// Removes from the store what is old and no image of it needs. Errors: `unsupported` (the node has no store),
    /// `no_capacity` (it cannot be reached), `internal` where a record in it is damaged.
    pub async fn gc_store(&self, request: GcRequest) -> Result<GcReport> {
        self.front.store_gc(request).await
    }

    /// Where the bytes of its layers are, lowest first.
    pub async fn layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        retry::repeat(|| self.front.image_layers(reference)).await
    }
}
