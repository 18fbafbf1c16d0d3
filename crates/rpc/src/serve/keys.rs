//! Who checks API keys, for the faces of foreign APIs: each finds the key where its clients put it.

use async_trait::async_trait;

#[async_trait]
pub trait Keys: Send + Sync {
    /// Errors: `unauthenticated`.
    async fn check(&self, key: &str) -> api::Result<()>;
}
