//! How long a sandbox lives: their timeout is our TTL, counted from now.

use api::spec::{SandboxInfo, TtlRequest};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;

use super::{
    Call,
    create::{TIMEOUT_S_DEFAULT, seconds},
    view,
};
use crate::{E2b, body, fault::Fault};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeout {
    timeout: u64,
}

/// Exactly this long from now on, shorter or longer.
pub(super) async fn timeout(call: Call, id: &str) -> Result<Response, Fault> {
    let asked: Timeout = body::parse(&body::whole(call.body).await?)?;
    let info = call.face.alive(id).await?;
    call.face.set(&info, asked.timeout).await?;
    Ok(body::nothing())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refresh {
    #[serde(default)]
    duration: Option<u64>,
}

/// At least this long from now on.
pub(super) async fn refresh(call: Call, id: &str) -> Result<Response, Fault> {
    let asked: Refresh = body::parse(&body::whole(call.body).await?)?;
    let info = call.face.alive(id).await?;
    call.face.extend(info, asked.duration.unwrap_or(TIMEOUT_S_DEFAULT)).await?;
    Ok(body::nothing())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Connect {
    #[serde(default)]
    timeout: Option<u64>,
    /// How to resume one that is paused; none is.
    #[serde(default, rename = "memory")]
    _memory: Option<bool>,
}

/// The way to a sandbox that another client made; it lives at least as long as this one asks.
pub(super) async fn connect(call: Call, id: &str) -> Result<Response, Fault> {
    let asked: Connect = body::parse(&body::whole(call.body).await?)?;
    let info = call.face.alive(id).await?;
    let info = call.face.extend(info, asked.timeout.unwrap_or(TIMEOUT_S_DEFAULT)).await?;
    Ok(body::json(StatusCode::OK, &view::access(&call.face, &info)))
}

impl E2b {
    async fn set(&self, info: &SandboxInfo, timeout_s: u64) -> Result<SandboxInfo, Fault> {
        let request = TtlRequest { ttl_ms: seconds(timeout_s) };
        request.validate()?;
        Ok(self.front.set_ttl(&info.id, request).await?)
    }

    async fn extend(&self, info: SandboxInfo, timeout_s: u64) -> Result<SandboxInfo, Fault> {
        let until = now_ms().saturating_add(seconds(timeout_s));
        if until <= info.expires_ms { Ok(info) } else { self.set(&info, timeout_s).await }
    }
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
