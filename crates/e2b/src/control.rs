//! The control API: sandboxes made, listed, kept and ended.

mod create;
mod lifetime;
mod list;
mod snapshot;
mod template;
mod view;

use std::sync::Arc;

use api::{Code, SandboxId, spec::SandboxInfo, state::State};
use axum::{body::Body, response::Response};
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use serde_json::json;

use crate::{E2b, body, fault::Fault};

/// One call of the control API.
struct Call {
    face: Arc<E2b>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
}

pub(crate) async fn serve(face: Arc<E2b>, request: Request<Body>) -> Response {
    dispatch(face, request).await.unwrap_or_else(Fault::rest)
}

async fn dispatch(face: Arc<E2b>, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let face = face.entered(key(&parts.headers)?).await?;
    let path = parts.uri.path().to_owned();
    let mut segments: Vec<&str> = path.split('/').skip(1).collect();
    // Versions differ in what they may leave out, which is read alike.
    if matches!(segments.first(), Some(&("v2" | "v3"))) {
        segments.remove(0);
    }
    let call = Call { face, headers: parts.headers, uri: parts.uri, body };
    match (&parts.method, segments.as_slice()) {
        (&Method::POST, ["sandboxes"]) => create::create(call).await,
        (&Method::GET, ["sandboxes"]) => list::list(call).await,
        (&Method::GET, ["sandboxes", "metrics"]) => {
            Ok(body::json(StatusCode::OK, &json!({ "sandboxes": {} })))
        }
        (&Method::GET, ["sandboxes", id]) => inspect(call, id).await,
        (&Method::DELETE, ["sandboxes", id]) => kill(call, id).await,
        (&Method::GET, ["sandboxes", id, "metrics"]) => metrics(call, id).await,
        (&Method::POST, ["sandboxes", id, "timeout"]) => lifetime::timeout(call, id).await,
        (&Method::POST, ["sandboxes", id, "refreshes"]) => lifetime::refresh(call, id).await,
        (&Method::POST, ["sandboxes", id, "connect"]) => lifetime::connect(call, id).await,
        (&Method::POST, ["sandboxes", id, "snapshots"]) => snapshot::create(call, id).await,
        (&Method::GET, ["snapshots"]) => snapshot::list(call).await,
        (&Method::DELETE, ["templates", id]) => snapshot::delete(call, id).await,
        (&Method::GET, ["templates", "aliases", name]) => template::exists(call, name).await,
        (_, segments) => Err(unsupported(segments)),
    }
}

/// The key, in any of the ways that their clients send it.
fn key(headers: &HeaderMap) -> Result<&str, Fault> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = || {
        let (scheme, key) = text(header::AUTHORIZATION.as_str())?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    };
    let key = text("x-api-key").or_else(bearer);
    key.map(str::trim).ok_or_else(|| Fault::unauthenticated("no API key: set E2B_API_KEY to a key of DSec"))
}

fn unsupported(segments: &[&str]) -> Fault {
    let what = match segments {
        ["sandboxes", _, "pause"] => "pausing sandboxes",
        ["sandboxes", _, "resume"] => "resuming sandboxes",
        ["sandboxes", _, "fork"] => {
            "forking sandboxes with their processes (a snapshot starts others from the disk)"
        }
        ["sandboxes", _, "logs"] => "logs of sandboxes",
        ["sandboxes", _, "network"] => "changing the network of a sandbox",
        ["templates", ..] => "templates (import images with `dsec image import`)",
        ["volumes", ..] => "volumes",
        ["secrets", ..] => "secrets",
        _ => "this path",
    };
    Fault::unsupported(format!("{what}: not supported by DSec"))
}

impl E2b {
    /// The sandbox, alive. Faults: `not_found`, also where it is broken or ends.
    async fn alive(&self, id: &str) -> Result<SandboxInfo, Fault> {
        let unknown =
            || Fault::not_found(format!("sandbox \"{}\" not found", id.chars().take(80).collect::<String>()));
        let parsed: SandboxId = id.parse().map_err(|_| unknown())?;
        let info = self.front.inspect(&parsed).await.map_err(|error| match error.code {
            Code::NotFound | Code::SandboxGone => unknown(),
            _ => error.into(),
        })?;
        if matches!(info.state, State::Creating | State::Running) { Ok(info) } else { Err(unknown()) }
    }
}

async fn inspect(call: Call, id: &str) -> Result<Response, Fault> {
    let info = call.face.alive(id).await?;
    Ok(body::json(StatusCode::OK, &view::detail(&call.face, &info)))
}

/// Also one that is broken. The answer comes when nothing is left of it.
async fn kill(call: Call, id: &str) -> Result<Response, Fault> {
    let unknown = || Fault::not_found("sandbox not found");
    let id: SandboxId = id.parse().map_err(|_| unknown())?;
    let front = call.face.front.clone();
    match rpc::to_the_end(async move { front.stop(&id).await }).await {
        Ok(()) => Ok(body::nothing()),
        Err(error) if matches!(error.code, Code::NotFound | Code::SandboxGone) => Err(unknown()),
        Err(error) => Err(error.into()),
    }
}

/// None are gathered: an empty list says so, and a sandbox that is not there is said too.
async fn metrics(call: Call, id: &str) -> Result<Response, Fault> {
    call.face.alive(id).await?;
    Ok(body::json(StatusCode::OK, &json!([])))
}
