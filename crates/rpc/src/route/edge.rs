//! The routes of a node, or of a cluster.

use std::sync::Arc;

use api::{
    Code,
    arrow::Front,
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxInfo, TtlRequest},
};

use super::{On, Route, verb};
use crate::serve::sandbox;

type To = Arc<dyn Front>;

/// Every route of `Edge`.
pub(crate) fn routes() -> Vec<Route<To>> {
    let mut routes = life_routes();
    routes.extend(super::disk::routes());
    routes
}

/// From create to stop.
fn life_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/sandboxes",
            verb!("create"),
            "Make sandboxes. One event for each, as it is ready or has failed.",
            |to, call| Box::pin(sandbox::create(to, call)),
        )
        .body::<CreateRequest>()
        .lines::<CreateEvent>()
        .errors(&[
            Code::NotFound,
            Code::AlreadyExists,
            Code::NoCapacity,
            Code::QuotaExceeded,
            Code::Unsupported,
        ]),
        Route::new(On::Get, "/sandboxes", verb!("list"), "The sandboxes that live.", |to, call| {
            Box::pin(sandbox::list(to, call))
        })
        .query::<ListQuery>()
        .json::<Vec<SandboxInfo>>(),
        Route::new(
            On::Get,
            "/sandboxes/{id}",
            verb!("inspect"),
            "What is known of a sandbox.",
            |to, call| Box::pin(sandbox::inspect(to, call)),
        )
        .json::<SandboxInfo>()
        .errors(&[Code::NotFound]),
        Route::new(
            On::Delete,
            "/sandboxes/{id}",
            verb!("stop"),
            "End a sandbox. The answer comes when nothing is left of it.",
            |to, call| Box::pin(sandbox::stop(to, call)),
        )
        .errors(&[Code::NotFound, Code::DeadlineExceeded]),
        Route::new(
            On::Put,
            "/sandboxes/{id}/ttl",
            verb!("set_ttl"),
            "A new life, counted from now.",
            |to, call| Box::pin(sandbox::set_ttl(to, call)),
        )
        .body::<TtlRequest>()
        .json::<SandboxInfo>()
        .errors(&[Code::NotFound, Code::Conflict]),
    ]
}
