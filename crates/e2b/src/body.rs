//! JSON bodies within bounds, and query strings.

use std::collections::BTreeMap;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri, header};
use rpc::BodyFault;
use serde::{Serialize, de::DeserializeOwned};

use crate::fault::Fault;

/// The body, whole. Errors: too large, too slow, broken off.
pub(crate) async fn whole(body: Body) -> Result<Bytes, Fault> {
    rpc::whole_body(body).await.map_err(|fault| match fault {
        BodyFault::TooLarge => {
            Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "resource_exhausted", fault.to_string())
        }
        other => api::Error::from(other).into(),
    })
}

/// `T` from JSON; an empty body is an empty object. Errors: with what is wrong, bounded.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let bytes = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|e| {
        let why: String = e.to_string().chars().take(500).collect();
        Fault::invalid(format!("body: {why}"))
    })
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // Plain data with string keys: serialising it cannot fail.
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn nothing() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The parameters of a URI, decoded; of one given twice, the last.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }
    /// None where it is absent or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}
