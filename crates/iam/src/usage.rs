//! Quota: taken before an edge is asked, given back by what edges tally. See docs/rfd/0006-iam.md for why no crash leaks it.

use std::time::Duration;

use api::{
    EdgeId, Result,
    iam::{Amount, Tally},
};

use crate::{Iam, store::now_ms};

/// Quota that was taken and not yet counted by a tally. It is ended by a tally that has it among the finished, by
/// [`Iam::cancel`], or by its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub id: String,
    pub expires_ms: u64,
}

impl Iam {
    /// Takes `amount` from a project and all above it. `within`: by then an edge has finished with it, or never will.
    /// Errors: `quota_exceeded`, which names the project and its bound.
    pub async fn reserve(&self, project_id: &str, amount: &Amount, within: Duration) -> Result<Reservation> {
        let id = format!("rv-{}", uuid::Uuid::now_v7().simple());
        let expires_ms = now_ms().saturating_add(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.store.reserve(&id, project_id, amount, expires_ms).await?;
        Ok(Reservation { id, expires_ms })
    }

    /// Gives a reservation back that no edge has been asked with.
    pub async fn cancel(&self, reservation: &Reservation) -> Result<()> {
        self.store.end_reservations(Some(&reservation.id)).await.map(drop)
    }

    /// Ends reservations that are over. Returns how many.
    pub async fn sweep_reservations(&self) -> Result<u64> {
        self.store.end_reservations(None).await
    }

    /// Takes what an edge says. False where it has said something newer already.
    pub async fn tally(&self, edge: &EdgeId, tally: &Tally) -> Result<bool> {
        self.store.tally(edge, tally).await
    }
}
