//! The catalogue of layers.

mod export;
pub mod import;
mod merge;
pub mod pack;
pub mod pull;

use std::sync::Arc;

use api::{Result, arrow::Front, image::ImageInfo};

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
}
