//! One request: whose sandbox, who may, which verb.

use std::sync::Arc;

use api::{
    Code, SandboxId,
    arrow::{Chronus, Front},
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use rpc::BodyFault;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    Swerex, execute,
    fault::{Fault, answer},
    files, session, upload,
};

const KEY_HEADER: &str = "x-api-key";
/// Their clients send one with each call, the same with a call that is sent again.
const REQUEST_HEADER: &str = "x-request-id";
/// Verbs that are asked for by POST.
const POSTED: [&str; 8] = [
    "create_session",
    "run_in_session",
    "close_session",
    "execute",
    "read_file",
    "write_file",
    "upload",
    "close",
];

/// One call of a sandbox's runtime, but for its body.
pub(crate) struct Call {
    pub(crate) face: Arc<Swerex>,
    pub(crate) id: SandboxId,
    pub(crate) chronus: Arc<dyn Chronus>,
    pub(crate) headers: HeaderMap,
}

impl Call {
    /// A key of the exec that this request starts, so that the request sent again does not start it twice.
    pub(crate) fn idempotency_key(&self) -> Option<String> {
        let id = self.headers.get(REQUEST_HEADER)?;
        Some(format!("swerex-{}", &blake3::hash(id.as_bytes()).to_hex()[..32]))
    }
}

/// `rest`: the path behind the mount, `<sandbox id>/<verb>`.
pub(crate) async fn serve(face: Arc<Swerex>, rest: &str, request: Request<Body>) -> Response {
    let stopping = rpc::Stopping::of(request.extensions());
    tokio::select! {
        done = dispatch(face, rest, request) => done.unwrap_or_else(Fault::response),
        // The sessions live on, and so does what runs in them.
        () = stopping.wait() => {
            let detail = "DSec is shutting down; the sandbox and its sessions live on";
            Fault::http(StatusCode::SERVICE_UNAVAILABLE, Code::NoCapacity, detail).response()
        }
    }
}

async fn dispatch(face: Arc<Swerex>, rest: &str, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let front = enter(&face, &parts.headers).await?;
    let (id, verb) = rest.split_once('/').unwrap_or((rest, ""));
    let id: SandboxId = id.parse().map_err(|_| no_sandbox(id))?;
    let chronus = front.chronus(&id).await.map_err(|error| match error.code {
        Code::NotFound => no_sandbox(id.as_str()),
        _ => error.into(),
    })?;
    let call = Call { face, id, chronus, headers: parts.headers };
    match (&parts.method, verb) {
        (&Method::GET, "") => Ok(answer(StatusCode::OK, &json!({ "message": "hello world" }))),
        (&Method::GET, "is_alive") => Ok(answer(StatusCode::OK, &json!({ "is_alive": true, "message": "" }))),
        (&Method::POST, "create_session") => session::create::serve(call, body).await,
        (&Method::POST, "run_in_session") => session::run::serve(call, body).await,
        (&Method::POST, "close_session") => session::close::serve(call, body).await,
        (&Method::POST, "execute") => execute::serve(call, body).await,
        (&Method::POST, "read_file") => files::read(call, body).await,
        (&Method::POST, "write_file") => files::write(call, body).await,
        (&Method::POST, "upload") => upload::serve(call, body).await,
        (&Method::POST, "close") => session::close::all(call).await,
        (_, verb) if POSTED.contains(&verb) || matches!(verb, "" | "is_alive") => {
            Err(Fault::http(StatusCode::METHOD_NOT_ALLOWED, Code::Unsupported, "Method Not Allowed"))
        }
        _ => Err(Fault::http(StatusCode::NOT_FOUND, Code::NotFound, "Not Found")),
    }
}

/// Before all else, so that a stranger learns nothing. No key is 403 and a wrong one 401, as with theirs.
async fn enter(face: &Swerex, headers: &HeaderMap) -> Result<Arc<dyn Front>, Fault> {
    let Some(key) = headers.get(KEY_HEADER) else {
        let detail = "Not authenticated: auth_token is a key of DSec";
        return Err(Fault::http(StatusCode::FORBIDDEN, Code::Unauthenticated, detail));
    };
    Ok(face.keys.enter(key.to_str().unwrap_or_default().trim()).await?.front)
}

fn no_sandbox(id: &str) -> Fault {
    let id: String = id.chars().take(80).collect();
    Fault::http(StatusCode::NOT_FOUND, Code::NotFound, format!("no sandbox `{id}`"))
}

/// The body as `T`. Faults: with what is wrong, bounded.
pub(crate) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Fault> {
    parse(&whole(body).await?)
}

async fn whole(body: Body) -> Result<Bytes, Fault> {
    rpc::whole_body(body).await.map_err(|fault| match fault {
        BodyFault::TooLarge => Fault::too_large(fault.to_string()),
        other => api::Error::from(other).into(),
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    // A list would pass for the fields in their order.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Fault::invalid("body: expected a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|e| {
        let why: String = e.to_string().chars().take(500).collect();
        Fault::invalid(format!("body: {why}"))
    })
}
