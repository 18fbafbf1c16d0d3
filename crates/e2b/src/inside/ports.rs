//! Ports of a sandbox, by header or host name: handed to the native proxy.

use std::sync::Arc;

use api::{Code, SandboxId};
use axum::{body::Body, response::Response};
use http::Request;

use super::check_traffic;
use crate::{
    E2b,
    fault::Fault,
    token::{AGENT_TOKEN_HEADER, TRAFFIC_TOKEN_HEADER},
};

pub(super) async fn serve(
    face: Arc<E2b>,
    id: &SandboxId,
    port: u16,
    mut request: Request<Body>,
) -> Result<Response, Fault> {
    let face = check_traffic(face, id, request.headers()).await?;
    let chronus = face.enter(id).await?;
    // What opens the sandbox is not for what runs in it.
    for name in [AGENT_TOKEN_HEADER, TRAFFIC_TOKEN_HEADER, "e2b-sandbox-id", "e2b-sandbox-port"] {
        request.headers_mut().remove(name);
    }
    rpc::proxy(chronus, port, request).await.map_err(|error| match error.code {
        Code::NotFound => Fault::port_closed(id, port),
        _ => error.into(),
    })
}
