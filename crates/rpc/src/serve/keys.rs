//! Who checks API keys, for the faces of foreign APIs: each finds the key where its clients put it.

use std::sync::Arc;

use api::arrow::Front;
use async_trait::async_trait;

#[async_trait]
pub trait Keys: Send + Sync {
    /// The service as the holder of the key sees it. Errors: `unauthenticated`.
    async fn enter(&self, key: &str) -> api::Result<Arc<dyn Front>>;
}
