//! publish: an image goes to the store, asked for or by itself after an import or a pack.

mod waiting;

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    Code, Error, Result,
    arrow::no_store,
    image::{BUILD_CACHE, ImageInfo},
    store::PublishReport,
};
use tokio::sync::Semaphore;
use waiting::{Added, Left, Waiting};

use crate::{node::Parts, uses::User};

/// Publishes of a node at once: each compresses on the node's cores.
const PUBLISHES_IN_FLIGHT: usize = 2;
const TRIES_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(120);

pub(crate) struct Publishing {
    places: Semaphore,
    waiting: Mutex<Waiting>,
}

impl Publishing {
    /// With what an earlier edge left waiting in `file`. Errors: the disk's.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let waiting = Mutex::new(Waiting::open(file)?);
        Ok(Self { places: Semaphore::new(PUBLISHES_IN_FLIGHT), waiting })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Publishes a new image in the background, where the node does that with each; goes on after a restart.
pub(crate) fn later(parts: &Arc<Parts>, image: &ImageInfo) {
    // A step of a build is worth little to another node, and would be sent for each change of a line.
    let is_step = image.name == BUILD_CACHE;
    if is_step || !parts.layers.shared().is_some_and(|store| store.publishes_all()) {
        return;
    }
    let reference = format!("{}:{}", image.name, image.version);
    match parts.publishing.waiting().add(&reference) {
        Ok(Added::New) => spawn(parts, reference),
        // One is under way, and may have read what was there before: it is followed by another.
        Ok(Added::Again) => {}
        Ok(Added::Full) => {
            tracing::warn!(image = reference, "too many images wait for the store: publish this one by hand");
        }
        Err(error) => {
            tracing::warn!(%error, image = reference, "publish: a restart would forget it");
            spawn(parts, reference);
        }
    }
}

/// Goes on with what an earlier edge did not get done.
pub(crate) fn resume(parts: &Arc<Parts>) {
    if !parts.layers.shared().is_some_and(|store| store.publishes_all()) {
        return;
    }
    for reference in parts.publishing.waiting().all() {
        tracing::info!(image = reference, "publish: it waits since before the restart");
        spawn(parts, reference);
    }
}

fn spawn(parts: &Arc<Parts>, reference: String) {
    let parts = parts.clone();
    tokio::spawn(async move {
        loop {
            if !persist(&parts, &reference).await {
                return;
            }
            match parts.publishing.waiting().done(&reference) {
                Ok(Left::Nothing) => return,
                Ok(Left::Again) => {}
                Err(error) => {
                    tracing::warn!(%error, image = reference, "publish: a restart does it once more");
                    return;
                }
            }
        }
    });
}

/// False: the edge ends; the next one goes on.
async fn persist(parts: &Arc<Parts>, reference: &str) -> bool {
    let mut pause = PAUSE;
    let mut tries = 0;
    loop {
        let error = match publish(parts, reference).await {
            Ok(_) => return true,
            // Removed meanwhile.
            Err(error) if error.code == Code::NotFound => return true,
            Err(error) => error,
        };
        if parts.check_open().is_err() {
            return false;
        }
        // A store that is away comes back; anything else may not.
        tries += u32::from(error.code != Code::NoCapacity);
        if tries >= TRIES_MAX {
            tracing::error!(%error, image = reference, "not in the store: publish it by hand");
            return true;
        }
        tracing::warn!(%error, image = reference, "publish: again later");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
