//! A handle to one sandbox. One file a verb.

pub mod create;
pub mod disk;
pub mod exec;
pub mod files;
pub mod port;
pub mod process;
pub mod stop;
pub mod tree;
pub mod ttl;

use std::sync::Arc;

use api::{
    Result, SandboxId,
    arrow::{Chronus, Front},
    spec::SandboxInfo,
};

use crate::retry;

/// A sandbox. Cheap to clone. Dropping it leaves the sandbox alive: [`Sandbox::stop`] ends it, or its TTL does.
#[derive(Clone)]
pub struct Sandbox {
    front: Arc<dyn Front>,
    created: Arc<SandboxInfo>,
}

impl Sandbox {
    pub(crate) fn new(front: Arc<dyn Front>, info: SandboxInfo) -> Self {
        Self { front, created: Arc::new(info) }
    }

    pub fn id(&self) -> &SandboxId {
        &self.created.id
    }

    /// What was known when this handle was made; [`Sandbox::info`] asks anew.
    pub fn created(&self) -> &SandboxInfo {
        &self.created
    }

    /// What is known of it now. Errors: `not_found` where it has ended.
    pub async fn info(&self) -> Result<SandboxInfo> {
        retry::repeat(|| self.front.inspect(self.id())).await
    }

    pub(crate) async fn chronus(&self) -> Result<Arc<dyn Chronus>> {
        retry::repeat(|| self.front.chronus(self.id())).await
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sandbox").field(self.id()).finish()
    }
}
