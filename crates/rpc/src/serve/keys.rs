//! Who checks API keys, for the faces of foreign APIs: each finds the key where its clients put it.

use std::sync::Arc;

use api::{
    arrow::Front,
    iam::{Action, Rights},
    spec::Kind,
};
use async_trait::async_trait;

/// The holder of a key.
pub struct Entered {
    /// The service as he sees it.
    pub front: Arc<dyn Front>,
    pub rights: Rights,
}

#[async_trait]
pub trait Keys: Send + Sync {
    /// Errors: `unauthenticated`.
    async fn enter(&self, key: &str) -> api::Result<Entered>;
}

/// Whether rights are all that there are inside a sandbox of a kind: then a token for all of it may be handed out.
pub fn is_whole_inside(rights: Rights, kind: Kind) -> bool {
    let actions: [fn(Kind) -> Action; 4] =
        [Action::SandboxRead, Action::SandboxExec, Action::SandboxFiles, Action::SandboxPorts];
    actions.into_iter().all(|action| rights.has(action(kind)))
}
