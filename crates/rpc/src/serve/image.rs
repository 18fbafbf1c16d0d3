//! The catalogue: import, pull, list, inspect, remove, merge, tag, export, publish; the store.

use std::sync::Arc;

use api::{
    Error, Result,
    arrow::Front,
    image::{ExportQuery, ImportQuery, MergeRequest, TagRequest},
    pull::PullRequest,
    store::{GcRequest, ImageListQuery},
};

use super::{
    answer,
    call::{Call, to_the_end},
};
use crate::route::Reply;

type To = Arc<dyn Front>;

/// `blake3:` and 64 digits, or two names of at most 63 bytes and a colon.
const REFERENCE_BYTES_MAX: usize = 128;

pub(super) fn reference(call: &Call) -> Result<String> {
    let text = call.text("reference").unwrap_or_default();
    let ok = (1..=REFERENCE_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b))
        && !text.starts_with(['.', '-', ':']);
    ok.then(|| text.to_owned()).ok_or_else(|| {
        Error::invalid("reference: expected `name`, `name:version` or `blake3:<64 hex digits>`")
    })
}

pub(crate) async fn import(to: To, call: Call) -> Reply {
    let query: ImportQuery = call.query()?;
    query.validate()?;
    Ok(answer::json(&to.import(query, call.stream()).await?))
}

pub(crate) async fn pull(to: To, mut call: Call) -> Reply {
    let request: PullRequest = call.json().await?;
    request.validate()?;
    Ok(answer::lines(to.pull(request).await?))
}

pub(crate) async fn list(to: To, call: Call) -> Reply {
    let query: ImageListQuery = call.query()?;
    let images = if query.store { to.store_list().await? } else { to.image_list().await? };
    Ok(answer::json(&images))
}

pub(crate) async fn publish(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.image_publish(&reference(&call)?).await?))
}

pub(crate) async fn store_remove(to: To, call: Call) -> Reply {
    let reference = reference(&call)?;
    to_the_end(async move { to.store_remove(&reference).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn store_gc(to: To, mut call: Call) -> Reply {
    let request: GcRequest = call.json().await?;
    request.validate()?;
    Ok(answer::json(&to_the_end(async move { to.store_gc(request).await }).await?))
}

pub(crate) async fn layers(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.image_layers(&reference(&call)?).await?))
}

pub(crate) async fn inspect(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.image_inspect(&reference(&call)?).await?))
}

pub(crate) async fn remove(to: To, call: Call) -> Reply {
    let reference = reference(&call)?;
    to_the_end(async move { to.image_remove(&reference).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn export(to: To, call: Call) -> Reply {
    let reference = reference(&call)?;
    let query: ExportQuery = call.query()?;
    Ok(answer::bytes("application/x-tar", to.image_export(&reference, query).await?).await?)
}

pub(crate) async fn merge(to: To, mut call: Call) -> Reply {
    let reference = reference(&call)?;
    let request: MergeRequest = call.json().await?;
    request.validate()?;
    let merged = to_the_end(async move { to.image_merge(&reference, request).await }).await?;
    Ok(answer::json(&merged))
}

pub(crate) async fn tag(to: To, mut call: Call) -> Reply {
    let reference = reference(&call)?;
    let request: TagRequest = call.json().await?;
    request.validate()?;
    let tagged = to_the_end(async move { to.image_tag(&reference, request).await }).await?;
    Ok(answer::json(&tagged))
}
