//! Publishing: sync everything, then rename layers and image into place.
//!
//! Invariant: a kill at any moment leaves either no name or a whole image; layers without a name are swept later.

use std::{collections::BTreeSet, fs, io, sync::Arc, time::SystemTime};

use api::{
    Result,
    image::{ImageConfig, ImageInfo, ImportQuery},
};

use super::{
    Catalogue, Resolved, disk,
    store::{self, Manifest, Scratch},
};
use crate::{erofs::Summary, import::Imported};

impl Catalogue {
    pub(super) fn publish(
        &self,
        query: &ImportQuery,
        imported: Imported,
        scratch: &Scratch,
    ) -> Result<ImageInfo> {
        for layer in imported.layers.iter().filter(|layer| !layer.is_known()) {
            store::seal(&layer.dir, &manifest(&layer.summary)).map_err(disk("sync a layer"))?;
        }
        let info = info(query, &imported)?;
        let json = serde_json::to_vec_pretty(&info).map_err(|e| disk("encode an image")(e.into()))?;
        let written = scratch.path().join("image.json");
        store::write_synced(&written, &json).map_err(disk("write an image"))?;

        let _changing = self.changing();
        for layer in imported.layers.iter().filter(|layer| !layer.is_known()) {
            self.place_layer(&layer.dir, &layer.summary.digest).map_err(disk("publish a layer"))?;
        }
        store::sync_dir(&self.dir.join(store::LAYERS)).map_err(disk("sync the layers"))?;
        let layers = info.layers.iter().map(|digest| store::load_layer(&self.dir, digest));
        let layers = layers.collect::<io::Result<_>>().map_err(disk("read a layer back"))?;
        let place = || {
            let names = self.dir.join(store::IMAGES);
            let dir = names.join(&info.name);
            fs::create_dir_all(&dir)?;
            fs::rename(&written, dir.join(format!("{}.json", info.version)))?;
            store::sync_dir(&dir)?;
            store::sync_dir(&names)
        };
        place().map_err(disk("publish an image"))?;
        let key = (info.name.clone(), info.version.clone());
        self.images_mut().insert(key, Arc::new(Resolved { info: info.clone(), layers }));
        self.remember(&imported.layers, scratch);
        tracing::info!(image = info.name, version = info.version, digest = info.digest, "image published");
        Ok(info)
    }

    /// A layer that is there already is the same to the byte: ours goes with the scratch directory.
    fn place_layer(&self, built: &std::path::Path, digest: &str) -> io::Result<()> {
        let place = self.layer_dir(digest);
        if store::load_layer(&self.dir, digest).is_ok() {
            return Ok(());
        }
        if place.exists() {
            // Damaged: the new one takes its place.
            fs::rename(&place, Scratch::create(&self.dir).map_err(io::Error::other)?.path().join("damaged"))?;
        }
        fs::rename(built, place)
    }
}

fn manifest(summary: &Summary) -> Manifest {
    Manifest {
        digest: summary.digest.clone(),
        files: summary.files,
        meta_bytes: summary.meta_bytes,
        blob_bytes: summary.blob_bytes,
        data_bytes: summary.data_bytes,
    }
}

fn info(query: &ImportQuery, imported: &Imported) -> Result<ImageInfo> {
    let layers: Vec<String> = imported.layers.iter().map(|layer| layer.summary.digest.clone()).collect();
    let distinct: BTreeSet<&String> = layers.iter().collect();
    debug_assert_eq!(distinct.len(), layers.len(), "an import drops equal layers");
    let sum = |of: fn(&Summary) -> u64| imported.layers.iter().map(|layer| of(&layer.summary)).sum();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(ImageInfo {
        name: query.name.clone(),
        version: query.version.clone(),
        kind: query.kind,
        digest: stack_digest(&layers, &imported.config)?,
        files: sum(|summary| summary.files),
        size_bytes: sum(|summary| summary.meta_bytes + summary.blob_bytes),
        config: imported.config.clone(),
        layers,
        created_ms: now.as_millis() as u64,
        in_use: 0,
    })
}

/// Over the layers and the config: images that behave alike have one digest, whatever they are called.
fn stack_digest(layers: &[String], config: &ImageConfig) -> Result<String> {
    let json = serde_json::to_vec(&(layers, config)).map_err(|e| disk("encode an image")(e.into()))?;
    Ok(format!("blake3:{}", blake3::hash(&json).to_hex()))
}
