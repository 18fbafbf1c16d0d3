//! tag: another name for the layers of an image.

use api::{
    Result,
    image::{ImageInfo, TagRequest},
};

use super::Images;

impl Images {
    /// Gives the layers of an image another name, with its config or the one of the request. A name and version that are
    /// there already lead to this image from then on. Errors: `not_found`.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::TagRequest;
    /// client.images().tag("debian", TagRequest::new("base")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        request.validate()?;
        self.front.image_tag(reference, request).await
    }
}
