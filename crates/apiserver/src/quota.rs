//! Quota of a create: taken before an edge is asked, and what edges tally taken in from time to time.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use api::{
    Code, EdgeId, Result,
    iam::{Amount, ROOT_PROJECT, Tally, TallyQuery},
    limit,
};
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

impl Session {
    /// Takes `amount` from a project and those above. None in the root project where it has no bound: nothing can be in the
    /// way. Any other may be removed meanwhile, and what is reserved keeps it.
    /// Errors: `quota_exceeded`.
    pub(crate) async fn reserve(&self, project_id: &str, amount: &Amount) -> Result<Option<Reservation>> {
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

    /// After an edge refused a request as a whole: it has heard of the reservation, so its next tally would end it; this is
    /// sooner.
    pub(crate) async fn give_back(&self, reservation: Option<&Reservation>) {
        let Some(reservation) = reservation else { return };
        if let Err(error) = self.shared.iam.cancel(reservation).await {
            tracing::warn!(%error, "a reservation ends by itself");
        }
    }
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
