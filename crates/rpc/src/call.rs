//! The clients: the traits of `api::arrow`, spoken over HTTP.
//!
//! [`EdgeClient`] speaks to an edge or an apiserver, [`ChronusClient`] to the inside of one sandbox, either through
//! an [`EdgeClient`] or straight to aether's UNIX socket. Clones share their connections.

mod access;
mod body;
mod chronus;
mod edge;
mod exec;
mod images;
mod origin;
mod port;

use std::path::PathBuf;

use api::{Error, Result, SandboxId};
use origin::{Origin, Target};

/// A cluster, or a node.
#[derive(Clone, Debug)]
pub struct EdgeClient {
    origin: Origin,
}

impl EdgeClient {
    /// `base_url`: `http://host:port` or `unix:/path/to.sock`. `key`: an API key, where the server asks for one.
    /// Connects at the first call. Errors: `invalid_argument` where the URL or the key is none.
    pub fn new(base_url: &str, key: Option<&str>) -> Result<Self> {
        Ok(Self { origin: Origin::new(Target::parse(base_url)?, key)? })
    }

    /// Over a UNIX socket, without a key.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { origin: Origin::without_key(Target::Unix(path.into())) }
    }

    /// The way into a sandbox. Sends nothing: an unknown id shows at the first call.
    pub fn sandbox(&self, id: &SandboxId) -> ChronusClient {
        ChronusClient { origin: self.origin.clone(), prefix: format!("/v1/sandboxes/{id}") }
    }

    /// Whether the server answers.
    pub async fn health(&self) -> Result<()> {
        let request = self.origin.request(http::Method::GET, "/v1/health".into());
        self.origin.done(request, origin::DEADLINE).await
    }
}

/// The inside of one sandbox.
#[derive(Clone, Debug)]
pub struct ChronusClient {
    origin: Origin,
    prefix: String,
}

impl ChronusClient {
    /// Straight to an aether. When nobody listens there, calls end with `sandbox_broken`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { origin: Origin::without_key(Target::Aether(path.into())), prefix: "/v1".into() }
    }

    fn path(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn path_query(&self, rest: &str, query: &impl serde::Serialize) -> Result<String> {
        Ok(format!("{}{rest}{}", self.prefix, query_of(query)?))
    }
}

/// A flat struct as `?name=value&...`; what is absent is left out.
fn query_of(query: &impl serde::Serialize) -> Result<String> {
    let value = serde_json::to_value(query).map_err(|e| Error::invalid(format!("query: {e}")))?;
    let mut out = String::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::Null => continue,
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        out.push(if out.is_empty() { '?' } else { '&' });
        out.push_str(&encode(name));
        out.push('=');
        out.push_str(&encode(&text));
    }
    Ok(out)
}

/// Percent-encodes all that is not unreserved (RFC 3986).
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
