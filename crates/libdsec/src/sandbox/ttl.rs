//! ttl: moves a sandbox's hard deadline.

use std::time::Duration;

use api::{
    Result,
    spec::{SandboxInfo, TtlRequest},
};

use super::Sandbox;

impl Sandbox {
    /// From now on it lives this long, whatever it was before. Errors: `invalid_argument`.
    pub async fn set_ttl(&self, ttl: Duration) -> Result<SandboxInfo> {
        let request = TtlRequest { ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX) };
        request.validate()?;
        self.front.set_ttl(self.id(), request).await
    }
}
