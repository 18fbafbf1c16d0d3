//! The server: connections, their limits, and the routers of each service.
//!
//! hyper is used directly, one task a connection, so that an idle server of aether costs little. Every answer has an
//! `x-request-id`, whatever router made it, and a panic of a handler becomes an `internal` answer.

pub(crate) mod access;
pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod disk;
mod dispatch;
pub(crate) mod environment;
pub(crate) mod exec;
pub(crate) mod file;
pub(crate) mod image;
mod keys;
mod listen;
#[cfg(feature = "multipart")]
mod multipart;
pub(crate) mod port;
#[cfg(feature = "call")]
pub(crate) mod proxy;
mod query;
pub(crate) mod sandbox;
#[cfg(feature = "http2")]
mod sniff;
pub(crate) mod tar;
mod whole;

use std::sync::Arc;

use api::{
    Error, SandboxId,
    arrow::{Chronus, Front},
};
use axum::{Router, response::Response};
use http::Extensions;

pub use call::{byte_stream, to_the_end};
pub use keys::{Entered, Keys, is_whole_inside};
pub use listen::{Listener, Stopping, serve};
#[cfg(feature = "multipart")]
pub use multipart::{Field, Parts, part_bytes};
#[cfg(feature = "call")]
pub use proxy::proxy;
pub use whole::{BodyFault, whole_body};

use crate::route;

/// Under which the routes of chronus stand on an edge or an apiserver.
pub(crate) const SANDBOX_MOUNT: &str = "/v1/sandboxes/{id}";
/// Under which all else stands.
pub(crate) const MOUNT: &str = "/v1";

/// The service of aether: the routes of chronus, at `/v1`.
pub fn chronus_router(chronus: Arc<dyn Chronus>) -> Router {
    let resolve = move |_: &call::Call| {
        let chronus = chronus.clone();
        async move { Ok(chronus) }
    };
    let router = dispatch::mount(Router::new(), MOUNT, route::chronus::routes(), resolve);
    dispatch::with_health(router)
}

/// The service of an edge or an apiserver: sandboxes, images, health, the document, and the way into each sandbox.
pub fn front_router(front: Arc<dyn Front>) -> Router {
    front_router_for(move |_| Ok(front.clone()))
}

/// The same, where who asks sees a service of his own: `find` gives it, by what the layers before have left in the
/// request's extensions.
pub fn front_router_for(
    find: impl Fn(&Extensions) -> api::Result<Arc<dyn Front>> + Clone + Send + Sync + 'static,
) -> Router {
    let itself = {
        let find = find.clone();
        move |call: &call::Call| {
            let front = find(call.extensions());
            async move { front }
        }
    };
    let inside = move |call: &call::Call| {
        let front = find(call.extensions());
        let id = call.param::<SandboxId>("id");
        async move { front?.chronus(&id?).await }
    };
    let router = dispatch::mount(Router::new(), MOUNT, route::edge::routes(), itself.clone());
    let router = dispatch::mount(router, MOUNT, route::images::routes(), itself.clone());
    let router = dispatch::mount(router, MOUNT, route::environments::routes(), itself.clone());
    let router = dispatch::mount(router, MOUNT, route::access::routes(), itself);
    let router = dispatch::mount(router, SANDBOX_MOUNT, route::chronus::routes(), inside.clone());
    #[cfg(feature = "call")]
    let router = dispatch::mount(router, SANDBOX_MOUNT, route::chronus::proxy_routes(), inside);
    #[cfg(feature = "openapi")]
    let router = crate::openapi::mount(router);
    dispatch::with_health(router)
}

/// An error as an answer, for a layer that refuses a request before it comes to a route. `extensions`: the request's.
pub fn error_response(error: Error, extensions: &Extensions) -> Response {
    let id = extensions.get::<api::RequestId>().cloned().unwrap_or_else(api::RequestId::new);
    answer::Fault::from(error).into_response(&id)
}
