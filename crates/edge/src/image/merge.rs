//! merge: the catalogue does it, on a thread that may block; sandboxes on the image notice nothing.

use api::{
    Result,
    image::{ImageInfo, MergeRequest},
};

use crate::node::EdgeNode;

impl EdgeNode {
    /// Once begun it goes on to its end, whether or not the caller waits for it.
    pub(super) async fn merge(&self, reference: String, request: MergeRequest) -> Result<ImageInfo> {
        request.validate()?;
        self.parts.check_open()?;
        let job = self.job()?;
        let merged = self.ask(move |layers| {
            let merged = layers.merge(&reference, &request);
            drop(job);
            merged
        });
        merged.await.map(|info| self.counted(info))
    }
}
