//! pull: an image comes from an OCI registry to the node.

use api::{
    Error, Result,
    image::ImageInfo,
    pull::{PullEvent, PullProgress, PullRequest},
};
use futures_util::StreamExt;

use super::Images;

impl Images {
    /// Pulls an image. What the node has of it already is not fetched again; dropped before its end, the pull ends.
    /// Errors: `unauthenticated` and `permission_denied` as the registry means them, `not_found`, `unreachable`.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::PullRequest;
    /// let request = PullRequest::new("registry.example.org/team/app:1.2");
    /// client.images().pull(request, |p| eprintln!("{} of {}", p.bytes_fetched, p.bytes_total)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pull(
        &self,
        request: PullRequest,
        mut progress: impl FnMut(&PullProgress) + Send,
    ) -> Result<ImageInfo> {
        request.validate()?;
        let mut events = self.front.pull(request).await?;
        while let Some(event) = events.next().await {
            match event? {
                PullEvent::Progress(told) => progress(&told),
                PullEvent::Pulled(image) => return Ok(image),
            }
        }
        Err(Error::internal("the pull ended without an image"))
    }
}
