//! What a client does inside one sandbox: who may, and which verb.

mod files;
mod gunzip;
mod multipart;
mod ports;

use std::sync::Arc;

use api::{Code, SandboxId, arrow::Chronus};
use axum::{body::Body, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, Method, Request, Uri, header};

use crate::{
    E2b, body, connect,
    fault::Fault,
    filesystem, process,
    target::AGENT_PORT,
    token::{AGENT_TOKEN_HEADER, Scope, Signed, TRAFFIC_TOKEN_HEADER},
};

const KEY_HEADER: &str = "x-api-key";

/// One call of the in-sandbox API, but for its body.
pub(crate) struct Inside {
    pub(crate) face: Arc<E2b>,
    pub(crate) id: SandboxId,
    pub(crate) chronus: Arc<dyn Chronus>,
    pub(crate) headers: HeaderMap,
    pub(crate) uri: Uri,
    /// For answers that last.
    pub(crate) stopping: rpc::Stopping,
    /// Who acts. None: the sandbox's own user.
    pub(crate) user: Option<String>,
}

/// The shape of an answer that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Rest,
    Unary,
    Stream,
}

pub(crate) async fn serve(face: Arc<E2b>, id: SandboxId, port: u16, request: Request<Body>) -> Response {
    if port != AGENT_PORT {
        return ports::serve(face, &id, port, request).await.unwrap_or_else(Fault::rest);
    }
    let form = form_of(request.uri().path());
    match dispatch(face, id, request).await {
        Ok(response) => response,
        Err(fault) => match form {
            Form::Rest => fault.rest(),
            Form::Unary => fault.connect(),
            Form::Stream => connect::fault_in_stream(fault),
        },
    }
}

fn form_of(path: &str) -> Form {
    match path {
        "/process.Process/Start" | "/process.Process/Connect" | "/process.Process/StreamInput" => {
            Form::Stream
        }
        "/filesystem.Filesystem/WatchDir" => Form::Stream,
        path if path.starts_with("/process.") || path.starts_with("/filesystem.") => Form::Unary,
        _ => Form::Rest,
    }
}

async fn dispatch(face: Arc<E2b>, id: SandboxId, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let face = check(face, &id, &parts.method, &parts.uri, &parts.headers).await?;
    let chronus = face.enter(&id).await?;
    let user = basic_user(&parts.headers)?;
    let (method, path) = (parts.method, parts.uri.path().to_owned());
    let stopping = rpc::Stopping::of(&parts.extensions);
    let call = Inside { face, id, chronus, headers: parts.headers, uri: parts.uri, stopping, user };
    match (method, path.as_str()) {
        (Method::GET, "/health") => Ok(body::nothing()),
        (Method::GET, "/files") => files::read(call).await,
        (Method::POST, "/files") => files::write(call, body).await,
        (Method::POST, path) => match path.split_at(path.rfind('/').unwrap_or(0)) {
            ("/process.Process", verb) => process::call(&verb[1..], call, body).await,
            ("/filesystem.Filesystem", verb) => filesystem::call(&verb[1..], call, body).await,
            _ => Err(unknown(path)),
        },
        (_, path) => Err(unknown(path)),
    }
}

pub(crate) fn unknown(path: &str) -> Fault {
    let path: String = path.chars().take(200).collect();
    Fault::unsupported(format!("{path}: DSec does not serve this part of the in-sandbox API"))
}

impl E2b {
    /// The way inside. Faults: 502 in their words where the sandbox is gone.
    pub(crate) async fn enter(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>, Fault> {
        self.front.chronus(id).await.map_err(|error| match error.code {
            Code::NotFound | Code::SandboxGone | Code::SandboxBroken => Fault::gone(id),
            Code::Conflict => Fault::port_closed(id, AGENT_PORT),
            _ => error.into(),
        })
    }
}

/// The token of the sandbox, a signature of the URL, or an API key; the face as whoever has it sees it.
async fn check(
    face: Arc<E2b>,
    id: &SandboxId,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Arc<E2b>, Fault> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    if let Some(token) = text(AGENT_TOKEN_HEADER) {
        return match face.tokens.fits(id, Scope::Agent, token) {
            true => Ok(face),
            false => Err(Fault::unauthenticated("X-Access-Token: not of this sandbox")),
        };
    }
    if let Some(key) = text(KEY_HEADER) {
        return Ok(face.entered(key).await?);
    }
    if uri.path() == "/files" {
        return check_signature(&face, id, method, uri).map(|()| face);
    }
    Err(Fault::unauthenticated("no token: connect to the sandbox by its id, with an API key, to get one"))
}

fn check_signature(face: &E2b, id: &SandboxId, method: &Method, uri: &Uri) -> Result<(), Fault> {
    let query = body::Query::of(uri);
    let signature = query
        .get("signature")
        .ok_or_else(|| Fault::unauthenticated("neither a token nor a signature in the URL"))?;
    let signed = Signed {
        path: query.get("path").unwrap_or_default(),
        operation: if *method == Method::GET { "read" } else { "write" },
        user: query.get("username").unwrap_or_default(),
        signature,
        expiration: query.get("signature_expiration"),
    };
    match face.tokens.fits_signature(id, &signed) {
        true => Ok(()),
        false => Err(Fault::unauthenticated("the signature does not fit this URL, or has expired")),
    }
}

/// `Authorization: Basic base64(user:)`: whom to act as. No password is checked: the token let the caller in.
fn basic_user(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let Some((scheme, encoded)) = text.split_once(' ') else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let wrong = || Fault::unauthenticated("Authorization: expected `Basic` and base64 of `user:`");
    let decoded = STANDARD.decode(encoded.trim()).map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    let user = decoded.split(':').next().unwrap_or_default();
    Ok((!user.is_empty()).then(|| user.to_owned()))
}

/// Whether the caller may reach a port; the face as he sees it.
pub(crate) async fn check_traffic(
    face: Arc<E2b>,
    id: &SandboxId,
    headers: &HeaderMap,
) -> Result<Arc<E2b>, Fault> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let fits = |name, scope| text(name).is_some_and(|token| face.tokens.fits(id, scope, token));
    if face.config.public_ports
        || fits(TRAFFIC_TOKEN_HEADER, Scope::Traffic)
        || fits(AGENT_TOKEN_HEADER, Scope::Agent)
    {
        return Ok(face);
    }
    if let Some(key) = text(KEY_HEADER) {
        return Ok(face.entered(key).await?);
    }
    Err(Fault::unauthenticated(
        "this port asks for the sandbox's traffic token, in the header `e2b-traffic-access-token`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_comes_by_basic_authorization() {
        let user = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            basic_user(&headers)
        };
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(user(&basic("root:")).unwrap(), Some("root".into()));
        assert_eq!(user(&basic(":")).unwrap(), None);
        assert_eq!(user("Bearer x").unwrap(), None);
        assert!(user("Basic %").is_err());
        assert_eq!(basic_user(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn each_path_has_its_form() {
        assert!(form_of("/process.Process/Start") == Form::Stream);
        assert!(form_of("/process.Process/List") == Form::Unary);
        assert!(form_of("/filesystem.Filesystem/WatchDir") == Form::Stream);
        assert!(form_of("/files") == Form::Rest);
    }
}
