//! The disk of a sandbox: checkpoints, rollback, fork, pack_diff.

use std::sync::Arc;

use api::{
    SandboxId,
    arrow::Front,
    snapshot::{CheckpointRequest, ForkRequest, PackRequest, RollbackRequest},
};
use futures_util::StreamExt;

use super::{
    answer,
    call::{Call, to_the_end},
};
use crate::route::Reply;

type To = Arc<dyn Front>;

pub(crate) async fn checkpoint(to: To, mut call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let request: CheckpointRequest = call.json().await?;
    request.validate()?;
    let made = to_the_end(async move { to.checkpoint(&id, request).await }).await?;
    Ok(answer::json(&made))
}

pub(crate) async fn checkpoint_list(to: To, call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    Ok(answer::json(&to.checkpoint_list(&id).await?))
}

pub(crate) async fn checkpoint_remove(to: To, call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let name = call.text("name").unwrap_or_default().to_owned();
    to_the_end(async move { to.checkpoint_remove(&id, &name).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn rollback(to: To, mut call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let request: RollbackRequest = call.json().await?;
    request.validate()?;
    let info = to_the_end(async move { to.rollback(&id, request).await }).await?;
    Ok(answer::json(&info))
}

pub(crate) async fn fork(to: To, mut call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let request: ForkRequest = call.json().await?;
    request.validate()?;
    let events = to_the_end(async move { to.fork(&id, request).await }).await?;
    Ok(answer::lines(events.map(Ok)))
}

pub(crate) async fn pack_diff(to: To, mut call: Call) -> Reply {
    let id: SandboxId = call.param("id")?;
    let request: PackRequest = call.json().await?;
    request.validate()?;
    let report = to_the_end(async move { to.pack_diff(&id, request).await }).await?;
    Ok(answer::json(&report))
}
