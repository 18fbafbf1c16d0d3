//! The HTTP proxy to a port inside: method, path, query, headers and body go through as they come; an upgrade
//! (WebSocket) becomes bytes both ways.
//!
//! Invariants: headers of the hop itself stay on it, the caller's key to DSec never gets inside, and nothing is
//! buffered whole.

use std::{sync::Arc, time::Duration};

use api::{Code, Error, Result, arrow::Chronus};
use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, Version, header};
use hyper::{client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tracing::Instrument;

use super::{call::Call, port::port_of};
use crate::{PortConnection, route::Reply};

/// From the request to the head of the answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(300);
/// `/v1/sandboxes/{id}/ports/{port}/http`: the segments before what goes inside.
const MOUNT_SEGMENTS: usize = 6;
/// Of the hop, not of the message (RFC 9110, 7.6.1), and the keys of DSec.
const STAYS_HERE: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

pub(crate) async fn http(to: Arc<dyn Chronus>, call: Call) -> Reply {
    let port = port_of(&call)?;
    let (mount, target) = split_target(&call.parts.uri)?;
    let mut request = Request::from_parts(call.parts, call.body);
    *request.uri_mut() = target;
    Ok(forward(to, port, request, Some(&mount)).await?)
}

/// The request, as the port shall see it but for what concerns the hop: its path and query go through untouched.
/// Errors: `not_found` where nothing listens there, `deadline_exceeded`.
pub async fn proxy(to: Arc<dyn Chronus>, port: u16, mut request: Request<Body>) -> Result<Response> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() =
        target.parse().map_err(|_| Error::invalid("path: not a path that HTTP can carry"))?;
    forward(to, port, request, None).await
}

/// `mount`: the path before the proxied one, where there is one.
async fn forward(
    to: Arc<dyn Chronus>,
    port: u16,
    mut request: Request<Body>,
    mount: Option<&str>,
) -> Result<Response> {
    let from_client = request.extensions_mut().remove::<OnUpgrade>();
    request.extensions_mut().clear();
    *request.version_mut() = Version::HTTP_11;
    let headers = std::mem::take(request.headers_mut());
    *request.headers_mut() = inward_headers(headers, port, mount);

    let stream = to.port_dial(port).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(PortConnection::from(stream)))
        .await
        .map_err(|e| bad_answer(port, &e))?;
    let driver = async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!(error = %e, port, "a proxied connection broke");
        }
    };
    tokio::spawn(driver.in_current_span());
    let answered =
        tokio::time::timeout(ANSWER_DEADLINE, sender.send_request(request)).await.map_err(|_| {
            let seconds = ANSWER_DEADLINE.as_secs();
            Error::new(Code::DeadlineExceeded, format!("port {port} did not answer within {seconds} s"))
        })?;
    let mut response = answered.map_err(|e| bad_answer(port, &e))?;

    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(header::UPGRADE).cloned();
    if let (true, Some(from_client)) = (switched, from_client) {
        let from_port = hyper::upgrade::on(&mut response);
        tokio::spawn(join_upgrades(from_client, from_port).in_current_span());
    }
    let mut response: Response = response.map(Body::new);
    strip(response.headers_mut());
    if let (true, Some(protocol)) = (switched, protocol) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    Ok(response)
}

fn bad_answer(port: u16, error: &hyper::Error) -> Error {
    tracing::debug!(error = %error, port, "no HTTP came from a port");
    Error::new(Code::NotFound, format!("port {port} closed the connection, or does not speak HTTP"))
}

async fn join_upgrades(client: OnUpgrade, port: OnUpgrade) {
    if let Ok((client, port)) = tokio::try_join!(client, port) {
        // An error is an end of either side that left: the same.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(port)).await;
    }
}

/// The path before the proxied one, and what the port shall see, both as they were encoded.
fn split_target(uri: &Uri) -> Result<(String, Uri)> {
    let path = uri.path();
    let end = path.match_indices('/').nth(MOUNT_SEGMENTS).map_or(path.len(), |(at, _)| at);
    let (mount, rest) = path.split_at(end);
    let rest = if rest.is_empty() { "/" } else { rest };
    let target = match uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.to_owned(),
    };
    let target = target.parse().map_err(|_| Error::invalid("path: not a path that HTTP can carry"))?;
    Ok((mount.to_owned(), target))
}

fn inward_headers(mut headers: HeaderMap, port: u16, mount: Option<&str>) -> HeaderMap {
    let upgrade = headers.get(header::UPGRADE).cloned();
    strip(&mut headers);
    headers.remove("x-api-key");
    if let Some(host) = headers.insert(header::HOST, host_of(port)) {
        headers.insert("x-forwarded-host", host);
    }
    if let Some(Ok(mount)) = mount.map(HeaderValue::from_str) {
        headers.insert("x-forwarded-prefix", mount);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    headers
}

fn host_of(port: u16) -> HeaderValue {
    HeaderValue::from_str(&format!("localhost:{port}"))
        .unwrap_or_else(|_| HeaderValue::from_static("localhost"))
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    named.iter().chain(&STAYS_HERE).for_each(|name| {
        headers.remove(name);
    });
}
