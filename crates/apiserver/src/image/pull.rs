//! A pull runs on the edge; its events are relayed as they come.

use api::{
    Result,
    arrow::BoxStream,
    iam::Action,
    pull::{PullEvent, PullRequest},
};

use crate::Session;

impl Session {
    pub(crate) async fn image_pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        request.validate()?;
        let name = request.reference.clone();
        self.noted("image.pull", &name, async { self.image_edge(Action::ImageWrite)?.pull(request).await })
            .await
    }
}
