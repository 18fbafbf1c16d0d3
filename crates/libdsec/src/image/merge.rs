//! merge: adjacent layers become one.

use api::{
    Result,
    image::{ImageInfo, MergeRequest},
};

use super::Images;

impl Images {
    /// Makes a new version of an image: the same content in fewer layers, so sandboxes on it have fewer mounts. The old
    /// version stays. Never asked twice: the second time the version is there.
    /// Errors: `not_found`; `already_exists`; `invalid_argument` where no two neighbours are small enough.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::MergeRequest;
    /// let image = client.images().merge("debian", MergeRequest::new("merged")).await?;
    /// println!("{} layers", image.layers.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        request.validate()?;
        self.front.image_merge(reference, request).await
    }
}
