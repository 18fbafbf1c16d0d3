//! Quota of a create: taken before an edge is asked, and what edges tally taken in from time to time.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use api::{
    Code, EdgeId, Error, Result,
    arrow::BoxStream,
    iam::{Amount, ROOT_PROJECT, Tally, TallyQuery},
    limit,
    spec::{CreateEvent, SandboxSpec},
};
use futures_util::StreamExt;
use iam::Reservation;

use crate::{Apiserver, session::Session};

/// Between two looks at what lives.
const TALLY_PERIOD: Duration = Duration::from_secs(1);
/// An edge that does not answer is asked again later.
const TALLY_WITHIN: Duration = Duration::from_secs(5);
/// An edge that has not begun with a create by then never will; one that works on it says so.
const BEGUN_WITHIN: Duration = Duration::from_millis(2 * limit::CREATE_MS_MAX);

/// The last tally of each edge that was taken in, and when.
pub(crate) type Taken = HashMap<EdgeId, (Tally, Instant)>;

/// One that says what the last one said is not written down, but for this: another apiserver may have written since.
const SAME_FOR: Duration = Duration::from_secs(30);

fn query_of(taken: &Tally) -> TallyQuery {
    TallyQuery { started_ms: taken.started_ms, sequence: taken.sequence }
}

/// Whether it says nothing new.
fn is_same(tally: &Tally, taken: &Tally) -> bool {
    let quiet = |tally: &Tally| tally.working.is_empty() && tally.finished.is_empty();
    quiet(tally) && quiet(taken) && tally.started_ms == taken.started_ms && tally.projects == taken.projects
}

/// On which terms an edge is asked.
pub(crate) struct Terms {
    /// Of the quota that was taken.
    pub(crate) reservation: Option<String>,
    /// There was none: what the request's key has made before is there, and counted, and is all that is answered.
    pub(crate) made_only: bool,
}

impl Session {
    /// Takes the quota of `count` sandboxes of `spec` from a project and those above, and asks an edge for them. Where there is
    /// none, a request that is `keyed` may be sent again: it is answered with what it has made, and for the rest, and where
    /// that is nothing, with which bound it was. Errors: `quota_exceeded`, `rate_limited`, the edge's.
    pub(crate) async fn within_quota(
        &self,
        project_id: &str,
        (spec, count): (&SandboxSpec, u32),
        keyed: bool,
        ask: impl AsyncFnOnce(Terms) -> Result<BoxStream<CreateEvent>>,
    ) -> Result<BoxStream<CreateEvent>> {
        self.check_rate(project_id, count).await?;
        let reservation = match self.reserve(project_id, &Amount::of(spec, count.into())).await {
            Err(refused) if refused.code == Code::QuotaExceeded && keyed => {
                return made_before(ask(Terms { reservation: None, made_only: true }).await, refused);
            }
            done => done?,
        };
        let id = reservation.as_ref().map(|reservation| reservation.id.clone());
        let asked = ask(Terms { reservation: id, made_only: false }).await;
        if let (Err(error), Some(reservation)) = (&asked, &reservation)
            && is_certain(error)
            // The next tally would end it, too; this is sooner.
            && let Err(error) = self.shared.iam.cancel(reservation).await
        {
            tracing::warn!(%error, "a reservation ends by itself");
        }
        asked
    }

    /// None in the root project where it has no bound: nothing can be in the way. Any other may be removed meanwhile, and what
    /// is reserved keeps it. Errors: `quota_exceeded`.
    async fn reserve(&self, project_id: &str, amount: &Amount) -> Result<Option<Reservation>> {
        let iam = &self.shared.iam;
        if project_id == ROOT_PROJECT && !iam.is_bounded(project_id).await? {
            return Ok(None);
        }
        let refused = match iam.reserve(project_id, amount, BEGUN_WITHIN).await {
            Err(error) if error.code == Code::QuotaExceeded => error,
            done => return done.map(Some),
        };
        // What has ended since the last look makes room.
        self.shared.take_tallies().await;
        match iam.reserve(project_id, amount, BEGUN_WITHIN).await {
            Err(error) if error.code == Code::QuotaExceeded => Err(refused),
            done => done.map(Some),
        }
    }
}

/// Whether an error says that the edge has made nothing and will not.
fn is_certain(error: &Error) -> bool {
    !matches!(error.code, Code::Unreachable | Code::DeadlineExceeded | Code::Internal)
}

/// The edge knows that there is no quota, and not which.
fn made_before(made: Result<BoxStream<CreateEvent>>, refused: Error) -> Result<BoxStream<CreateEvent>> {
    let named = move |error: Error| match error.code {
        Code::QuotaExceeded => refused.clone(),
        _ => error,
    };
    let events = made.map_err(&named)?;
    Ok(Box::pin(events.map(move |event| match event {
        CreateEvent::Failed { index, error } => CreateEvent::Failed { index, error: named(error) },
        made => made,
    })))
}

impl Apiserver {
    /// Asks every edge what lives there.
    pub(crate) async fn take_tallies(&self) {
        let edges = self.edges.iter().map(|(id, edge)| async move {
            let last = self.taken.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
            let query = last.as_ref().map(|(taken, _)| query_of(taken)).unwrap_or_default();
            let asked = tokio::time::timeout(TALLY_WITHIN, edge.tally(query)).await;
            let tally = match asked {
                Ok(Ok(tally)) => tally,
                Ok(Err(error)) if error.code == Code::Unsupported => return,
                Ok(Err(error)) => return tracing::warn!(edge = %id, %error, "no tally"),
                Err(_) => return tracing::warn!(edge = %id, "no tally in time"),
            };
            if last.is_some_and(|(taken, since)| is_same(&tally, &taken) && since.elapsed() < SAME_FOR) {
                return;
            }
            if let Err(error) = self.iam.tally(id, &tally).await {
                return tracing::warn!(edge = %id, %error, "its tally is not taken in");
            }
            self.taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(id.clone(), (tally, Instant::now()));
        });
        futures_util::future::join_all(edges).await;
        if let Err(error) = self.iam.sweep_reservations().await {
            tracing::warn!(%error, "reservations that are over stay for now");
        }
    }
}

/// For as long as the apiserver lives.
pub(crate) async fn keep_tallied(apiserver: Weak<Apiserver>) {
    while let Some(apiserver) = apiserver.upgrade() {
        apiserver.take_tallies().await;
        drop(apiserver);
        tokio::time::sleep(TALLY_PERIOD).await;
    }
}

/// Starts it.
pub(crate) fn watch(apiserver: &Arc<Apiserver>) {
    tokio::spawn(keep_tallied(Arc::downgrade(apiserver)));
}
