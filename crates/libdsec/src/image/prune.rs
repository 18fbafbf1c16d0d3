//! prune: the images of builds' steps go.

use api::{
    Code, Result,
    image::{BUILD_CACHE, ImageInfo},
};

use super::Images;

impl Images {
    /// Removes every step that builds have cached, and gives what was removed. What a sandbox lives on stays, and what an
    /// image of another name has of them. A build that goes on runs its steps again.
    pub async fn prune(&self) -> Result<Vec<ImageInfo>> {
        let steps = self.list().await?.into_iter().filter(|image| image.name == BUILD_CACHE);
        self.remove_steps(steps).await
    }

    pub(crate) async fn remove_steps(
        &self,
        steps: impl IntoIterator<Item = ImageInfo>,
    ) -> Result<Vec<ImageInfo>> {
        let mut removed = Vec::new();
        for step in steps {
            match self.remove(&format!("{}:{}", step.name, step.version)).await {
                Ok(()) => removed.push(step),
                // In use, or another's prune was sooner.
                Err(e) if [Code::Conflict, Code::NotFound].contains(&e.code) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(removed)
    }
}
