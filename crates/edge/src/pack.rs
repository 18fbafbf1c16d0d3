//! pack_diff: a snapshot of the disk, made a layer and an image while the sandbox runs on.

mod git;

use std::{sync::Arc, time::Duration};

use api::{
    Code, Error, Result, SandboxId, limit,
    snapshot::{PackReport, PackRequest},
};
use image::Under;

use crate::{image::sweep, node::Parts, publish, sandbox::Sandbox, uses::User};

/// Packs of a node at once: each reads a disk and hashes it.
pub(crate) const PACKS_IN_FLIGHT: usize = 2;
/// Of those who wait for a place.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(60);

/// See `api::arrow::Edge::pack_diff`.
#[tracing::instrument(level = "debug", name = "edge.pack_diff", skip_all)]
pub(crate) async fn pack_diff(
    parts: &Arc<Parts>,
    id: &SandboxId,
    request: PackRequest,
) -> Result<PackReport> {
    parts.check_open()?;
    request.validate()?;
    let sandbox = parts.registry.get(id)?;
    let place = tokio::time::timeout(PLACE_WAIT_MAX, parts.packs.acquire()).await;
    let _place = place.ok().and_then(Result::ok).ok_or_else(|| {
        let message = format!("{PACKS_IN_FLIGHT} disks are being packed on this node already");
        Error::new(Code::NoCapacity, message).retry_after_ms(5_000)
    })?;
    if request.scrub.git_unreachable {
        return git::pack_cleaned(parts, id, request).await;
    }
    pack_one(parts, &sandbox, request).await
}

/// The work itself; the caller has a place.
async fn pack_one(parts: &Arc<Parts>, sandbox: &Arc<Sandbox>, request: PackRequest) -> Result<PackReport> {
    // Its layers stay though it may end meanwhile.
    let _used = parts.uses.hold(sandbox.images(), sandbox.layers(), User::Request);
    let snapshot = sandbox.snapshot().await?;
    let under = Under {
        layers: sandbox.layers().to_vec(),
        config: sandbox.image_config().clone(),
        image: sandbox.images().first().cloned(),
    };
    let (layers, upper) = (parts.layers.clone(), snapshot.path.join("up"));
    let packing = tokio::task::spawn_blocking(move || layers.pack(&request, &upper, under));
    let packed = tokio::time::timeout(Duration::from_millis(limit::PACK_MS_MAX), packing).await;
    let packed = packed.map_err(|_| {
        Error::new(
            Code::DeadlineExceeded,
            format!("{} was not packed in {} ms", sandbox.id, limit::PACK_MS_MAX),
        )
    })?;
    let mut report = packed.map_err(|error| {
        tracing::error!(%error, "pack: the catalogue panicked");
        Error::internal("the catalogue failed")
    })??;
    report.frozen_us = snapshot.took.as_micros() as u64;
    publish::later(parts, &report.image);
    // It may have taken another's name.
    sweep(parts).await;
    Ok(report)
}
