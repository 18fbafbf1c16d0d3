//! Sandboxes that are made for a caller who has left (a cancelled task, Ctrl-C, a loop that was broken out of):
//! nobody has their id, so they are stopped.

use std::{
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt};
use libdsec::{Created, Result, Sandbox};

use crate::runtime::Shared;

/// Stops at once.
const STOPS_MAX: usize = 16;

/// A sandbox on its way to Python. Dropped before it arrives, it is stopped, where `stops` says so.
pub(crate) struct Parcel {
    sandbox: Option<Sandbox>,
    shared: Shared,
    stops: bool,
}

impl Parcel {
    pub(crate) fn new(sandbox: Sandbox, shared: &Shared, stops: bool) -> Self {
        Self { sandbox: Some(sandbox), shared: shared.clone(), stops }
    }

    /// It has arrived.
    pub(crate) fn open(mut self) -> Option<Sandbox> {
        self.sandbox.take()
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take().filter(|_| self.stops) else { return };
        let count = self.shared.orphans.clone();
        count.fetch_add(1, Ordering::SeqCst);
        self.shared.handle.spawn(async move {
            // Where it fails, the TTL ends it.
            let _ = sandbox.stop().await;
            count.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// The sandboxes of one batch. Dropped, it goes on in the background and stops those that were not taken.
pub(crate) struct Parcels {
    created: Option<Created>,
    shared: Shared,
    stops: bool,
}

impl Parcels {
    pub(crate) fn new(created: Created, shared: &Shared, stops: bool) -> Self {
        Self { created: Some(created), shared: shared.clone(), stops }
    }
}

impl Stream for Parcels {
    type Item = Result<Parcel>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(created) = &mut self.created else { return Poll::Ready(None) };
        let next = std::task::ready!(created.poll_next_unpin(context));
        if next.is_none() {
            self.created = None;
        }
        Poll::Ready(next.map(|made| made.map(|sandbox| Parcel::new(sandbox, &self.shared, self.stops))))
    }
}

impl Drop for Parcels {
    fn drop(&mut self) {
        let Some(created) = self.created.take().filter(|_| self.stops) else { return };
        let count = self.shared.orphans.clone();
        count.fetch_add(1, Ordering::SeqCst);
        self.shared.handle.spawn(async move {
            let made = created.filter_map(|made| async { made.ok() });
            made.for_each_concurrent(STOPS_MAX, |sandbox| async move {
                let _ = sandbox.stop().await;
            })
            .await;
            count.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// One sandbox, made to its end even where the caller leaves.
pub(crate) async fn one(created: Created, shared: Shared, stops: bool) -> Result<Parcel> {
    let mut parcels = Parcels::new(created, &shared, stops);
    let made = parcels.next().await;
    made.unwrap_or_else(|| Err(libdsec::Error::internal("the server answered a create with nothing")))
}
