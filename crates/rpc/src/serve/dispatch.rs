//! From the route table to an axum router: methods, spans, faults.

use std::{collections::BTreeMap, sync::Arc};

use api::{Code, Error, RequestId};
use axum::{Router, body::Body, response::Response, routing::any};
use http::{HeaderValue, Request, StatusCode, header};
use serde_json::json;
use tracing::Instrument;

use super::{
    answer::{self, Fault},
    call::Call,
};
use crate::route::{On, Route};

/// The methods of one path.
type Group<S> = Arc<Vec<Route<S>>>;

/// Adds `routes` under `prefix`. `resolve` finds what a request's verb is called on.
pub(crate) fn mount<S, R, F>(mut router: Router, prefix: &str, routes: Vec<Route<S>>, resolve: R) -> Router
where
    S: Send + Sync + 'static,
    R: Fn(&Call) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = api::Result<S>> + Send + 'static,
{
    let mut groups: BTreeMap<&'static str, Vec<Route<S>>> = BTreeMap::new();
    for route in routes {
        groups.entry(route.path).or_default().push(route);
    }
    for (path, group) in groups {
        let (group, resolve) = (Arc::new(group), resolve.clone());
        router = router.route(
            &format!("{prefix}{path}"),
            any(move |request: Request<Body>| dispatch(group.clone(), resolve.clone(), request)),
        );
    }
    router
}

/// Adds `/v1/health` and the answer to all that no route knows.
pub(crate) fn with_health(router: Router) -> Router {
    router.route("/v1/health", any(|| async { answer::json(&json!({ "status": "ok" })) })).fallback(
        |request: Request<Body>| async move {
            let error = Error::not_found("no such path; GET /v1/openapi.json lists them all");
            Fault::from(error).into_response(&id_of(&request))
        },
    )
}

fn id_of(request: &Request<Body>) -> RequestId {
    request.extensions().get::<RequestId>().cloned().unwrap_or_else(RequestId::new)
}

async fn dispatch<S, R, F>(group: Group<S>, resolve: R, request: Request<Body>) -> Response
where
    S: Send + Sync + 'static,
    R: Fn(&Call) -> F,
    F: Future<Output = api::Result<S>> + Send + 'static,
{
    let id = id_of(&request);
    let Some(route) = group.iter().find(|route| route.on.takes(request.method())) else {
        return wrong_method(&group, &id);
    };
    let call = match Call::new(request).await {
        Ok(call) => call,
        Err(fault) => return fault.into_response(&id),
    };
    let span = (route.verb.span)(&id, call.text("id").unwrap_or_default());
    let work = async {
        let to = resolve(&call).await?;
        (route.run)(to, call).await
    };
    match work.instrument(span).await {
        Ok(response) => response,
        Err(fault) => fault.into_response(&id),
    }
}

fn wrong_method<S>(group: &[Route<S>], id: &RequestId) -> Response {
    let allowed: Vec<&str> =
        group.iter().map(|route| route.on.as_str()).filter(|m| *m != On::Any.as_str()).collect();
    let allowed = allowed.join(", ");
    let error = Error::new(Code::InvalidArgument, format!("this path takes {allowed}"));
    let mut response = Fault::with_status(StatusCode::METHOD_NOT_ALLOWED, error).into_response(id);
    if let Ok(value) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}
