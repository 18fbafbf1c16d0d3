//! The id of the request that the current task works for. A server sets it; a client sends it on, so one id names
//! the whole road of a call.

use api::RequestId;

/// Carries the id, both ways.
pub const HEADER: &str = "x-request-id";

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of the request being served by this task, if any.
pub fn current() -> Option<RequestId> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs `work` as a part of request `id`.
#[cfg(feature = "serve")]
pub(crate) async fn scope<T>(id: RequestId, work: impl Future<Output = T>) -> T {
    CURRENT.scope(id, work).await
}
