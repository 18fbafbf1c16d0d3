//! Publishing: sync everything, then rename layers and image into place.
//!
//! Invariant: a kill at any moment leaves either no name or a whole image; layers without a name are swept later.

use std::{fs, io, sync::Arc, time::SystemTime};

use api::{
    Result,
    image::{ImageConfig, ImageInfo, ImportQuery, LayerKind},
    limit,
};

use super::{
    Catalogue, Resolved, disk,
    store::{self, Manifest, Scratch},
};
use crate::{erofs::Summary, import::Imported};

/// What an image is to be called.
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: LayerKind,
}

impl<'a> From<&'a ImportQuery> for Named<'a> {
    fn from(query: &'a ImportQuery) -> Self {
        Self { name: &query.name, version: &query.version, kind: query.kind }
    }
}

impl Catalogue {
    pub(super) fn publish(&self, named: &Named, imported: Imported, scratch: &Scratch) -> Result<ImageInfo> {
        for layer in &imported.layers {
            store::seal(&layer.dir, &manifest(&layer.summary)).map_err(disk("sync a layer"))?;
        }
        let info = self.info(named, &imported)?;
        let layers = imported.layers.iter().map(|layer| (layer.dir.as_path(), layer.summary.digest.as_str()));
        self.place(info, layers, scratch)
    }

    /// Renames sealed layers, each with its digest, and then the image that names them, into place.
    pub(super) fn place<'a>(
        &self,
        info: ImageInfo,
        made: impl IntoIterator<Item = (&'a std::path::Path, &'a str)>,
        scratch: &Scratch,
    ) -> Result<ImageInfo> {
        let json = serde_json::to_vec_pretty(&info).map_err(|e| disk("encode an image")(e.into()))?;
        let written = scratch.path().join("image.json");
        store::write_synced(&written, &json).map_err(disk("write an image"))?;

        let _changing = self.changing();
        for (dir, digest) in made {
            self.place_layer(dir, digest).map_err(disk("publish a layer"))?;
        }
        store::sync_dir(&self.dir.join(store::LAYERS)).map_err(disk("sync the layers"))?;
        let layers = info.layers.iter().map(|digest| self.load_layer(digest));
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
        tracing::info!(image = info.name, version = info.version, digest = info.digest, "image published");
        Ok(info)
    }

    /// Errors: a layer below is not there.
    fn info(&self, named: &Named, imported: &Imported) -> Result<ImageInfo> {
        let below = imported.below.iter().map(|digest| store::load_manifest(&self.dir, digest));
        let below: Vec<Manifest> = below.collect::<io::Result<_>>().map_err(disk("read a layer"))?;
        let made: Vec<Manifest> = imported.layers.iter().map(|layer| manifest(&layer.summary)).collect();
        let mut layers: Vec<Manifest> = Vec::new();
        for layer in below.into_iter().chain(made) {
            // The same layer twice is there once, where it is seen.
            layers.retain(|other| other.digest != layer.digest);
            layers.push(layer);
        }
        let digests: Vec<String> = layers.iter().map(|layer| layer.digest.clone()).collect();
        if digests.len() > limit::LAYERS_MAX {
            return Err(api::Error::invalid(format!(
                "the image would have {} layers, at most {}: merge some of them",
                digests.len(),
                limit::LAYERS_MAX
            )));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(ImageInfo {
            name: named.name.to_owned(),
            version: named.version.to_owned(),
            kind: named.kind,
            digest: stack_digest(&digests, &imported.config)?,
            files: layers.iter().map(|layer| layer.files).sum(),
            size_bytes: layers.iter().map(|layer| layer.meta_bytes + layer.blob_bytes).sum(),
            config: imported.config.clone(),
            layers: digests,
            created_ms: now.as_millis() as u64,
            in_use: 0,
        })
    }

    /// A layer that is there already is the same to the byte: ours goes with the scratch directory.
    pub(super) fn place_layer(&self, built: &std::path::Path, digest: &str) -> io::Result<()> {
        let place = self.layer_dir(digest);
        if self.load_layer(digest).is_ok() {
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
        remote: false,
    }
}

/// Over the layers and the config: images that behave alike have one digest, whatever they are called.
pub(super) fn stack_digest(layers: &[String], config: &ImageConfig) -> Result<String> {
    let json = serde_json::to_vec(&(layers, config)).map_err(|e| disk("encode an image")(e.into()))?;
    Ok(format!("blake3:{}", blake3::hash(&json).to_hex()))
}
