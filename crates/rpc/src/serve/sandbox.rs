//! Sandboxes: create, list, inspect, stop, TTL.

use std::sync::Arc;

use api::{
    SandboxId,
    arrow::Front,
    spec::{CreateRequest, ListQuery, TtlRequest},
};
use futures_util::StreamExt;

use super::{
    answer,
    call::{Call, to_the_end},
};
use crate::route::Reply;

type To = Arc<dyn Front>;

pub(crate) async fn create(to: To, mut call: Call) -> Reply {
    let request: CreateRequest = call.json().await?;
    request.validate()?;
    let events = to_the_end(async move { to.create(request).await }).await?;
    Ok(answer::lines(events.map(Ok)))
}

pub(crate) async fn list(to: To, call: Call) -> Reply {
    let query: ListQuery = call.query()?;
    Ok(answer::json(&to.list(query).await?))
}

pub(crate) async fn inspect(to: To, call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    Ok(answer::json(&to.inspect(&id).await?))
}

pub(crate) async fn stop(to: To, call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    to_the_end(async move { to.stop(&id).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn set_ttl(to: To, mut call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let request: TtlRequest = call.json().await?;
    request.validate()?;
    let info = to_the_end(async move { to.set_ttl(&id, request).await }).await?;
    Ok(answer::json(&info))
}
