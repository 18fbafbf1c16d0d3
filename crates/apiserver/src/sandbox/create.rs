//! Create: whose they are and whether there is quota is settled here, and the edge is chosen. One edge now; placement comes
//! with the second.

use api::{
    Code, Error, Result,
    arrow::BoxStream,
    iam::{Action, Amount},
    spec::{CreateEvent, CreateRequest},
};
use futures_util::StreamExt;

use crate::Session;

impl Session {
    #[tracing::instrument(level = "debug", name = "apiserver.create", skip_all)]
    pub(crate) async fn sandbox_create(&self, mut request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        self.may(Action::SandboxCreate(request.spec.kind))?;
        // What is in an image can be read by whoever has a sandbox of it.
        self.may(Action::ImageRead)?;
        let project = self.shared.iam.project_within(&self.who, request.project.as_deref()).await?;
        self.check_rate(&project, request.count).await?;
        let amount = Amount::of(&request.spec, request.count.into());
        request.project = Some(project.clone());
        let reservation = match self.reserve(&project, &amount).await {
            Err(refused) if refused.code == Code::QuotaExceeded && request.idempotency_key.is_some() => {
                return self.made_before(request, refused).await;
            }
            done => done?,
        };
        request.made_only = false;
        request.reservation = reservation.as_ref().map(|reservation| reservation.id.clone());
        let created = self.shared.any_edge()?.create(request).await;
        if created.as_ref().is_err_and(is_certain) {
            self.give_back(reservation.as_ref()).await;
        }
        created
    }

    /// What the request's key has made is there, and counted; it is answered though there is no quota for more. For the rest,
    /// and where it has made nothing: `refused`.
    async fn made_before(
        &self,
        mut request: CreateRequest,
        refused: Error,
    ) -> Result<BoxStream<CreateEvent>> {
        request.made_only = true;
        request.reservation = None;
        let named = move |error: Error| match error.code {
            Code::QuotaExceeded => refused.clone(),
            _ => error,
        };
        let events = self.shared.any_edge()?.create(request).await.map_err(&named)?;
        Ok(Box::pin(events.map(move |event| match event {
            CreateEvent::Failed { index, error } => CreateEvent::Failed { index, error: named(error) },
            made => made,
        })))
    }
}

/// Whether an error says that the edge has made nothing and will not.
pub(crate) fn is_certain(error: &Error) -> bool {
    !matches!(error.code, Code::Unreachable | Code::DeadlineExceeded | Code::Internal)
}
