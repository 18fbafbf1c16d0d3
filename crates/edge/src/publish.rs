//! publish: an image goes to the store, asked for or by itself after an import or a pack.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api::{
    Code, Error, Result,
    arrow::no_store,
    image::{BUILD_CACHE, ImageInfo},
    store::PublishReport,
};
use tokio::sync::Semaphore;

use crate::{node::Parts, uses::User};

/// Publishes of a node at once: each compresses on the node's cores.
const PUBLISHES_IN_FLIGHT: usize = 2;
/// Of those that nobody asked for: more than these are left out, with a warning.
const WAITING_MAX: usize = 1024;
const TRIES_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(120);

pub(crate) struct Publishing {
    places: Semaphore,
    waiting: AtomicUsize,
}

impl Default for Publishing {
    fn default() -> Self {
        Self { places: Semaphore::new(PUBLISHES_IN_FLIGHT), waiting: AtomicUsize::new(0) }
    }
}

/// See `api::arrow::Images::image_publish`. Its layers stay meanwhile, though its name may go.
#[tracing::instrument(level = "debug", name = "edge.publish", skip(parts))]
pub(crate) async fn publish(parts: &Arc<Parts>, reference: &str) -> Result<PublishReport> {
    if parts.layers.shared().is_none() {
        return Err(no_store());
    }
    let failed = |_| Error::internal("the catalogue failed");
    let _place =
        parts.publishing.places.acquire().await.map_err(|_| Error::internal("no place to publish"))?;
    let _used = {
        let _no_removal = parts.images.read().await;
        let image = parts.layers.inspect(reference)?;
        parts.uses.hold(&[image.digest], &image.layers, User::Request)
    };
    let (layers, named) = (parts.layers.clone(), reference.to_owned());
    let sent = tokio::task::spawn_blocking(move || layers.shared().ok_or_else(no_store)?.publish(&named));
    let report = sent.await.map_err(failed)??;
    tracing::info!(image = reference, bytes = report.bytes_sent, "image sent to the store");
    Ok(report)
}

/// Publishes a new image in the background, where the node does that with each; tries again for some minutes.
pub(crate) fn later(parts: &Arc<Parts>, image: &ImageInfo) {
    // A step of a build is worth little to another node, and would be sent for each change of a line.
    let is_step = image.name == BUILD_CACHE;
    if is_step || !parts.layers.shared().is_some_and(|store| store.publishes_all()) {
        return;
    }
    let reference = format!("{}:{}", image.name, image.version);
    if parts.publishing.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
        parts.publishing.waiting.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(image = reference, "too many images wait for the store: publish this one by hand");
        return;
    }
    let parts = parts.clone();
    tokio::spawn(async move {
        persist(&parts, &reference).await;
        parts.publishing.waiting.fetch_sub(1, Ordering::Relaxed);
    });
}

async fn persist(parts: &Arc<Parts>, reference: &str) {
    let mut pause = PAUSE;
    for tries in 1..=TRIES_MAX {
        match publish(parts, reference).await {
            Ok(_) => return,
            // Removed meanwhile.
            Err(error) if error.code == Code::NotFound => return,
            Err(error) if tries == TRIES_MAX || parts.check_open().is_err() => {
                tracing::error!(%error, image = reference, "not in the store: publish it by hand");
                return;
            }
            Err(error) => tracing::warn!(%error, image = reference, tries, "publish: again later"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
