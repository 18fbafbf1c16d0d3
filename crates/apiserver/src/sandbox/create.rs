//! Create: the edge is chosen here. One edge now; placement comes with the second.

use api::{
    Result,
    arrow::BoxStream,
    spec::{CreateEvent, CreateRequest},
};

use crate::Apiserver;

impl Apiserver {
    #[tracing::instrument(level = "debug", name = "apiserver.create", skip_all)]
    pub(crate) async fn sandbox_create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.any_edge()?.create(request).await
    }
}
