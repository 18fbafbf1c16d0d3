//! Environments: the catalogue keeps them; here it is known what lives on them.

use api::{
    Result,
    arrow::no_environments,
    environment::{EnvironmentInfo, EnvironmentRequest},
};

use crate::{
    fetch,
    layers::{Environments, Layers},
    node::EdgeNode,
};

fn of(layers: &dyn Layers) -> Result<&dyn Environments> {
    layers.environments().ok_or_else(no_environments)
}

impl EdgeNode {
    fn counted_environment(&self, mut info: EnvironmentInfo) -> EnvironmentInfo {
        if let Some(digest) = &info.digest {
            info.in_use = self.parts.uses.sandboxes(digest);
            info.usage = self.parts.usages.of(digest);
        }
        info
    }

    pub(super) async fn create_environment(&self, request: EnvironmentRequest) -> Result<EnvironmentInfo> {
        request.validate()?;
        self.parts.check_open()?;
        let parts: Vec<&str> = request.parts().map(|(_, reference)| reference).collect();
        fetch::ensure(&self.parts, parts).await?;
        let made = self.ask(move |layers| of(layers)?.create(&request)).await;
        made.map(|info| self.counted_environment(info))
    }

    pub(super) async fn list_environments(&self) -> Result<Vec<EnvironmentInfo>> {
        let environments = self.ask(|layers| Ok(of(layers)?.list())).await?;
        Ok(environments.into_iter().map(|info| self.counted_environment(info)).collect())
    }

    pub(super) async fn inspect_environment(&self, reference: &str) -> Result<EnvironmentInfo> {
        let reference = reference.to_owned();
        let found = self.ask(move |layers| of(layers)?.inspect(&reference)).await;
        found.map(|info| self.counted_environment(info))
    }

    pub(super) async fn remove_environment(&self, reference: &str) -> Result<()> {
        let _no_lookup = self.parts.images.write().await;
        let (reference, uses) = (reference.to_owned(), self.parts.uses.clone());
        self.ask(move |layers| of(layers)?.remove(&reference, &|digest| uses.contains(digest))).await
    }
}
