//! A pull runs on the edge; its events are relayed as they come.

use api::{
    Result,
    arrow::BoxStream,
    pull::{PullEvent, PullRequest},
};

use crate::Apiserver;

impl Apiserver {
    pub(crate) async fn image_pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        request.validate()?;
        self.any_edge()?.pull(request).await
    }
}
