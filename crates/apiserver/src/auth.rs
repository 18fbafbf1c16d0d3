//! The check of the key, before any route.

use std::sync::Arc;

use api::{Code, Error, Result};
use async_trait::async_trait;
use axum::{body::Body, extract::State, middleware::Next, response::Response};
use http::{HeaderMap, HeaderValue, Request, header};
use iam::Iam;

use crate::{Apiserver, Session};

/// For the faces that find the key themselves.
pub(crate) struct Keys(pub(crate) Arc<Apiserver>);

#[async_trait]
impl rpc::Keys for Keys {
    async fn enter(&self, key: &str) -> Result<rpc::Entered> {
        let who = self.0.iam.authenticate(key).await?;
        let rights = who.rights;
        Ok(rpc::Entered { front: Arc::new(Session::new(self.0.clone(), who)), rights })
    }
}

const KEY_HEADER: &str = "x-api-key";
/// Open to all: probes and tools have no key.
const OPEN: [&str; 2] = ["/v1/health", "/v1/openapi.json"];

pub(crate) async fn check(State(iam): State<Iam>, mut request: Request<Body>, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let key = take_key(request.headers_mut());
    let principal = match key {
        Ok(key) => iam.authenticate(&key).await,
        Err(e) => Err(e),
    };
    match principal {
        Ok(principal) => {
            tracing::debug!(project_id = %principal.project_id, key_id = %principal.key_id, path = request.uri().path(), "let in");
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(e) => {
            let refused = e.code == Code::Unauthenticated;
            let mut response = rpc::error_response(e, request.extensions());
            if refused {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

/// The key, taken out: what is proxied to a port inside must not carry it. With `X-API-Key`, `Authorization` is the
/// caller's own and stays.
fn take_key(headers: &mut HeaderMap) -> Result<String> {
    let missing = || {
        Error::new(
            Code::Unauthenticated,
            "no API key: send `Authorization: Bearer <key>` or `X-API-Key: <key>`",
        )
    };
    if let Some(value) = headers.remove(KEY_HEADER) {
        return Ok(value.to_str().map_err(|_| missing())?.trim().to_owned());
    }
    let value = headers.remove(header::AUTHORIZATION).ok_or_else(missing)?;
    let (scheme, key) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(missing());
    }
    Ok(key.trim().to_owned())
}
