//! stop: ends a sandbox and everything in it.

use api::{Code, Result};

use super::Sandbox;
use crate::retry;

impl Sandbox {
    /// Ends it; answers when nothing is left of it. Errors: `not_found` where it had ended already.
    pub async fn stop(&self) -> Result<()> {
        let mut tried = false;
        retry::repeat(|| {
            let again = std::mem::replace(&mut tried, true);
            async move {
                match self.front.stop(self.id()).await {
                    // The answer to an earlier try was lost, not its effect.
                    Err(e) if again && e.code == Code::NotFound => Ok(()),
                    done => done,
                }
            }
        })
        .await
    }
}
