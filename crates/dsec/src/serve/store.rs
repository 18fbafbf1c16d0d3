//! The store that nodes share, beside the catalogue: what is published leaves it, what is fetched enters it.

use std::{
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    Error, Result,
    image::ImageInfo,
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use image::{Arrived, Catalogue, Manifest, Scratch};
use storage::{
    Store, StoreConfig,
    config::{Fetch, Publish},
    gc::Mode,
    publish::{Layer, Sent},
};
use tokio::runtime::Handle;

use crate::config::Config;

/// Of an image whose layers get old while they are sent.
const PUBLISHES_MAX: usize = 4;
/// Layers of an image that are fetched at once: each has its meta in memory.
const FETCHES_IN_FLIGHT: usize = 4;
/// Layers that the store is asked about at once; each may have to wait some seconds for it.
const LAYERS_IN_FLIGHT: usize = 16;

pub(super) struct Shared {
    store: Store,
    config: StoreConfig,
    catalogue: Arc<Catalogue>,
    /// The node's directory.
    data: PathBuf,
    /// The callers' threads may block, and wait on it.
    runtime: Handle,
}

impl Shared {
    /// None where no store is configured. To be called on the runtime.
    pub(super) fn open(config: &Config, catalogue: Arc<Catalogue>) -> anyhow::Result<Option<Self>> {
        if !config.store.is_set() {
            return Ok(None);
        }
        let store = Store::open(&config.store)?;
        let data = config.data.clone();
        Ok(Some(Self { store, config: config.store.clone(), catalogue, data, runtime: Handle::current() }))
    }

    /// A layer as the store has it, put into a directory of `scratch`.
    async fn fetch_layer(&self, digest: &str, scratch: &Scratch) -> Result<Arrived> {
        let (manifest, meta) = self.store.layer(digest).await?;
        let (meta_name, blob_name) = Catalogue::FILES;
        let dir = scratch.path().join(digest.trim_start_matches("blake3:"));
        let remote = self.config.fetch == Fetch::OnDemand && manifest.blob_bytes > 0;
        let write = || {
            fs::create_dir(&dir)?;
            fs::write(dir.join(meta_name), &meta)?;
            if remote {
                let mut file = fs::File::create_new(dir.join(layerd::MANIFEST))?;
                serde_json::to_writer(&mut file, &manifest)?;
                file.sync_all()?;
            }
            Ok(())
        };
        write().map_err(disk)?;
        if manifest.blob_bytes > 0 && !remote {
            self.store.blob(&manifest, &dir.join(blob_name)).await?;
        }
        let manifest = Manifest {
            digest: manifest.digest,
            files: manifest.files,
            meta_bytes: manifest.meta_bytes,
            blob_bytes: manifest.blob_bytes,
            data_bytes: manifest.data_bytes,
            remote,
        };
        Ok(Arrived { manifest, dir })
    }

    fn publish_layer(&self, digest: &str) -> Result<Sent> {
        let gone = || Error::not_found("a layer of it is not there any more");
        let (manifest, files) = self.catalogue.layer(digest).ok_or_else(gone)?;
        if manifest.remote {
            let text = format!("layer {digest} is not in this store, nor whole on this node");
            return Err(Error::invalid(text));
        }
        let layer = Layer {
            digest: manifest.digest,
            files: manifest.files,
            meta_bytes: manifest.meta_bytes,
            blob_bytes: manifest.blob_bytes,
            data_bytes: manifest.data_bytes,
            meta: files.meta,
            blob: files.blob,
        };
        Ok(self.runtime.block_on(self.store.put_layer(&layer))?)
    }

    /// Sends the layers that the store lacks, and makes sure that it keeps the others.
    fn publish_layers(&self, image: &ImageInfo, all: &mut Sent) -> Result<()> {
        let there = stream::iter(&image.layers).map(|digest| self.store.keep_layer(digest));
        let there = there.buffered(LAYERS_IN_FLIGHT).try_collect::<Vec<bool>>();
        let there = self.runtime.block_on(there)?;
        for (digest, _) in image.layers.iter().zip(there).filter(|(_, is_there)| !is_there) {
            let sent = self.publish_layer(digest)?;
            all.bytes += sent.bytes;
            all.objects += sent.objects;
            all.layers += sent.layers;
        }
        Ok(())
    }
}

fn disk(source: io::Error) -> Error {
    storage::Error::Disk { what: "write a layer that was fetched", source }.into()
}

impl edge::Shared for Shared {
    fn fetch(&self, reference: &str) -> Result<()> {
        let found = self.runtime.block_on(self.store.image(reference))?;
        let image = found.ok_or_else(|| Error::not_found(format!("the store has no image `{reference}`")))?;
        let scratch = self.catalogue.scratch()?;
        let absent = image.layers.iter().filter(|digest| self.catalogue.layer(digest).is_none());
        // The disk is written to from here: this thread may block.
        let fetching = stream::iter(absent).map(|digest| self.fetch_layer(digest, &scratch));
        let arrived: Vec<Arrived> =
            self.runtime.block_on(fetching.buffered(FETCHES_IN_FLIGHT).try_collect::<Vec<_>>())?;
        self.catalogue.adopt(&image, &arrived, &scratch)?;
        Ok(())
    }

    fn publish(&self, reference: &str) -> Result<PublishReport> {
        let image = self.catalogue.inspect(reference)?;
        let mut all = Sent::default();
        // What was found or sent first may be old when the last is there, and nothing names it yet.
        for _ in 0..PUBLISHES_MAX {
            let begun = Instant::now();
            self.publish_layers(&image, &mut all)?;
            if begun.elapsed() <= self.store.ages.refresh {
                self.runtime.block_on(self.store.put_image(&image))?;
                return Ok(PublishReport {
                    image,
                    layers_sent: all.layers,
                    objects_sent: all.objects,
                    bytes_sent: all.bytes,
                });
            }
        }
        Err(storage::Error::Unavailable("it takes an image so slowly that its layers get old".into()).into())
    }

    fn remove(&self, reference: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.store.remove_image(reference))?)
    }

    fn gc(&self, request: GcRequest) -> Result<GcReport> {
        let mode = if request.dry_run { Mode::DryRun } else { Mode::Remove };
        let older_than = Duration::from_millis(request.older_than_ms);
        let swept = self.runtime.block_on(self.store.gc(older_than, mode))?;
        Ok(GcReport {
            dry_run: request.dry_run,
            layers_kept: swept.layers_kept,
            layers_removed: swept.layers,
            objects_removed: swept.objects,
            traces_removed: swept.traces,
            bytes_removed: swept.bytes,
            failed: swept.failed,
        })
    }

    fn list(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.runtime.block_on(self.store.images())?)
    }

    fn layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        let image = self.catalogue.inspect(reference)?;
        let fetched = layerd::fetched(&self.data);
        let status = |digest: &String| {
            let (manifest, _) = self.catalogue.layer(digest)?;
            let hex = manifest.digest.trim_start_matches("blake3:");
            let counts = fetched.get(hex).copied().unwrap_or_default();
            Some(LayerStatus {
                fetched_bytes: counts.fetched_bytes,
                prefetched_bytes: counts.prefetched_bytes,
                digest: manifest.digest,
                remote: manifest.remote,
                meta_bytes: manifest.meta_bytes,
                blob_bytes: manifest.blob_bytes,
            })
        };
        Ok(image.layers.iter().filter_map(status).collect())
    }

    fn publishes_all(&self) -> bool {
        self.config.publish == Publish::Always
    }
}
