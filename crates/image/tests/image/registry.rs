//! A registry in this process that does what a test tells it, and remembers what it was asked.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode, header},
    response::Response,
};
use serde_json::{Value, json};

use crate::oci::{Layout, sha256};

/// Smaller blobs are configs, which its bad manners spare.
const SMALL_BYTES: usize = 10_000;

/// How it behaves; all off by default.
#[derive(Default)]
pub struct Manners {
    /// `Bearer` at `/token` of the same server, or `Basic`; the one pair of credentials that it knows.
    pub bearer: bool,
    pub basic: bool,
    pub credentials: Option<(&'static str, &'static str)>,
    /// Blobs are at this origin, e.g. `http://127.0.0.1:4000`.
    pub redirect: Option<String>,
    /// For the next requests of a layer: how many bytes come before the connection breaks.
    pub breaks: VecDeque<usize>,
    /// Every layer ends in peace after so many bytes, without telling its length.
    pub ends_after: Option<usize>,
    /// Range requests are answered from the beginning.
    pub no_range: bool,
    /// A blob's bytes come in pieces with this pause between them.
    pub pause: Option<Duration>,
    /// The next answers.
    pub refusals: VecDeque<(StatusCode, Option<&'static str>)>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

#[derive(Default)]
pub struct Inner {
    pub blobs: Mutex<BTreeMap<String, Vec<u8>>>,
    /// By tag and by digest.
    pub manifests: Mutex<BTreeMap<String, Vec<u8>>>,
    pub manners: Mutex<Manners>,
    pub asked: Mutex<Vec<Asked>>,
    pub served_bytes: Mutex<u64>,
}

pub struct Registry {
    pub inner: Arc<Inner>,
    pub address: std::net::SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Registry {
    pub fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let inner = Arc::new(Inner::default());
        let router = Router::new().fallback(answer).with_state(inner.clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { inner, address, _runtime: runtime }
    }

    /// With an image under `tag`.
    pub fn with(layout: &Layout, tag: &str) -> Self {
        let registry = Self::start();
        registry.push(layout, tag);
        registry
    }

    pub fn push(&self, layout: &Layout, tag: &str) {
        self.inner.blobs.lock().unwrap().extend(layout.blobs.clone());
        let digest = layout.index["manifests"][0]["digest"].as_str().unwrap();
        let manifest = layout.blobs[digest.strip_prefix("sha256:").unwrap()].clone();
        self.manifest(tag, manifest);
    }

    /// Puts a manifest under a tag and its digest, which is given back.
    pub fn manifest(&self, tag: &str, bytes: Vec<u8>) -> String {
        let digest = format!("sha256:{}", sha256(&bytes));
        let mut manifests = self.inner.manifests.lock().unwrap();
        manifests.insert(digest.clone(), bytes.clone());
        manifests.insert(tag.to_owned(), bytes);
        digest
    }

    pub fn json(&self, tag: &str, manifest: &Value) -> String {
        self.manifest(tag, serde_json::to_vec(manifest).unwrap())
    }

    pub fn blob(&self, bytes: &[u8]) -> Value {
        let hex = sha256(bytes);
        self.inner.blobs.lock().unwrap().insert(hex.clone(), bytes.to_vec());
        json!({"digest": format!("sha256:{hex}"), "size": bytes.len()})
    }

    pub fn reference(&self, rest: &str) -> String {
        format!("{}/team/app{rest}", self.address)
    }

    pub fn manners(&self) -> std::sync::MutexGuard<'_, Manners> {
        self.inner.manners.lock().unwrap()
    }

    /// What was asked since the last call, and how many bytes of blobs were given.
    pub fn take(&self) -> (Vec<Asked>, u64) {
        let asked = std::mem::take(&mut *self.inner.asked.lock().unwrap());
        (asked, std::mem::take(&mut *self.inner.served_bytes.lock().unwrap()))
    }

    pub fn blobs_asked(&self) -> Vec<Asked> {
        self.take().0.into_iter().filter(|asked| asked.path.contains("/blobs/")).collect()
    }
}

fn plain(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}

async fn answer(State(inner): State<Arc<Inner>>, request: Request<Body>) -> Response {
    let text =
        |name| request.headers().get(name).map(|v: &header::HeaderValue| v.to_str().unwrap().to_owned());
    let asked = Asked {
        path: request.uri().to_string(),
        range: text(header::RANGE),
        authorization: text(header::AUTHORIZATION),
    };
    inner.asked.lock().unwrap().push(asked.clone());
    let host = text(header::HOST).unwrap();
    let mut manners = inner.manners.lock().unwrap();
    if let Some((status, after)) = manners.refusals.pop_front() {
        let mut response = plain(status, "no");
        if let Some(after) = after {
            response.headers_mut().insert(header::RETRY_AFTER, after.parse().unwrap());
        }
        return response;
    }
    if let Some(refusal) = check(&manners, &asked, &host) {
        return refusal;
    }
    let parts: Vec<&str> = request.uri().path().trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["v2", "team", "app", "manifests", name] => match inner.manifests.lock().unwrap().get(name) {
            Some(bytes) => plain(StatusCode::OK, bytes.clone()),
            None => plain(StatusCode::NOT_FOUND, "{}"),
        },
        ["v2", "team", "app", "blobs", digest] | ["storage", digest] => {
            if let Some(to) = manners.redirect.as_ref().filter(|_| parts[0] == "v2") {
                let mut response = plain(StatusCode::TEMPORARY_REDIRECT, "");
                let location = format!("{to}/storage/{digest}?signature=x%2Fy");
                response.headers_mut().insert(header::LOCATION, location.parse().unwrap());
                return response;
            }
            let bytes = inner.blobs.lock().unwrap().get(digest.trim_start_matches("sha256:")).cloned();
            match bytes {
                Some(bytes) => blob(&inner, &mut manners, bytes, asked.range.as_deref()),
                None => plain(StatusCode::NOT_FOUND, "{}"),
            }
        }
        _ => plain(StatusCode::NOT_FOUND, "{}"),
    }
}

/// None: it may pass.
fn check(manners: &Manners, asked: &Asked, host: &str) -> Option<Response> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let basic = manners
        .credentials
        .map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
    if asked.path.starts_with("/token") {
        return Some(match &basic {
            Some(basic) if asked.authorization.as_ref() != Some(basic) => plain(StatusCode::UNAUTHORIZED, ""),
            _ => plain(StatusCode::OK, r#"{"token": "t0ken"}"#),
        });
    }
    let (challenge, wanted) = if manners.bearer {
        (
            format!("Bearer realm=\"http://{host}/token?a=b\",service=\"a registry\""),
            Some("Bearer t0ken".into()),
        )
    } else if manners.basic {
        ("Basic realm=\"x\"".into(), basic)
    } else {
        return None;
    };
    if asked.path.starts_with("/storage") || asked.authorization == wanted {
        return None;
    }
    let mut response = plain(StatusCode::UNAUTHORIZED, "{}");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
    Some(response)
}

fn blob(inner: &Arc<Inner>, manners: &mut Manners, mut bytes: Vec<u8>, range: Option<&str>) -> Response {
    let whole = bytes.len();
    let from = range.map(|range| range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap());
    let from: Option<usize> = from.filter(|_| !manners.no_range);
    if let Some(from) = from {
        if from >= whole {
            return plain(StatusCode::RANGE_NOT_SATISFIABLE, "");
        }
        bytes.drain(..from);
    }
    let is_layer = whole > SMALL_BYTES;
    let breaks = is_layer.then(|| manners.breaks.pop_front()).flatten();
    let length = bytes.len();
    bytes.truncate(breaks.or(manners.ends_after.filter(|_| is_layer)).unwrap_or(length));
    let (served, pause) = (inner.clone(), manners.pause);
    let pieces = bytes.chunks(16 << 10).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter().map(Some);
    let pieces = pieces.chain(breaks.map(|_| None)).collect::<VecDeque<_>>();
    let body = futures_util::stream::unfold(pieces, move |mut pieces| {
        let served = served.clone();
        async move {
            tokio::time::sleep(pause.unwrap_or_default()).await;
            let piece = match pieces.pop_front()? {
                Some(piece) => {
                    *served.served_bytes.lock().unwrap() += piece.len() as u64;
                    Ok(piece)
                }
                None => {
                    // What was sent before must arrive before the end does.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Err(std::io::Error::other("broken"))
                }
            };
            Some((piece, pieces))
        }
    });
    let status = if from.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = plain(status, Body::from_stream(body));
    if manners.ends_after.is_none() || !is_layer {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    if let Some(from) = from {
        let range = format!("bytes {from}-{}/{whole}", whole - 1);
        response.headers_mut().insert(header::CONTENT_RANGE, range.parse().unwrap());
    }
    response
}
