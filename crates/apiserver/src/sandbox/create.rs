//! Create: whose they are and whether there is quota is settled here, and the edge is chosen. One edge now; placement comes
//! with the second.

use api::{
    Result,
    arrow::BoxStream,
    iam::Action,
    spec::{CreateEvent, CreateRequest},
};

use crate::{Session, quota::Terms};

impl Session {
    #[tracing::instrument(level = "debug", name = "apiserver.create", skip_all)]
    pub(crate) async fn sandbox_create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.may(Action::SandboxCreate(request.spec.kind))?;
        // What is in an image can be read by whoever has a sandbox of it.
        self.may(Action::ImageRead)?;
        let project = self.shared.iam.project_within(&self.who, request.project.as_deref()).await?;
        let keyed = request.idempotency_key.is_some();
        let spec = request.spec.clone();
        self.within_quota(
            &project,
            (&spec, request.count),
            keyed,
            async |Terms { reservation, made_only }| {
                let project = Some(project.clone());
                self.shared
                    .any_edge()?
                    .create(CreateRequest { project, reservation, made_only, ..request })
                    .await
            },
        )
        .await
    }
}
