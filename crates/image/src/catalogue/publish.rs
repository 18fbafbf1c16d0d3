//! Publishing: sync everything, then rename layers and image into place.
//!
//! Invariant: a kill at any moment leaves either no name or a whole image; layers without a name are swept later.

use std::{collections::BTreeSet, fs, io, sync::Arc, time::SystemTime};

use api::{
    Result,
    image::{ImageConfig, ImageInfo, ImportQuery, LayerKind, Usage},
};

use super::{
    Catalogue, Images, Resolved, disk, environment,
    store::{self, Manifest, Scratch},
};
use crate::{
    erofs::Summary,
    import::{Built, Imported},
};

/// An image that is about to be.
pub(super) struct Draft {
    pub name: String,
    pub version: String,
    pub kind: LayerKind,
    pub config: ImageConfig,
    pub built_on: Option<String>,
    /// Lowest first, no two with one digest.
    pub layers: Vec<Part>,
}

/// A layer of a draft.
pub(super) enum Part {
    /// In the scratch directory.
    Built(Built),
    /// Published already.
    Kept(Manifest),
}

impl Part {
    pub(super) fn digest(&self) -> &str {
        match self {
            Self::Built(built) => &built.summary.digest,
            Self::Kept(manifest) => &manifest.digest,
        }
    }

    fn manifest(&self) -> Manifest {
        match self {
            Self::Built(built) => manifest(&built.summary),
            Self::Kept(manifest) => manifest.clone(),
        }
    }
}

impl Catalogue {
    pub(super) fn publish(
        &self,
        query: &ImportQuery,
        imported: Imported,
        scratch: &Scratch,
    ) -> Result<ImageInfo> {
        let draft = Draft {
            name: query.name.clone(),
            version: query.version.clone(),
            kind: query.kind,
            config: imported.config,
            built_on: None,
            layers: imported.layers.into_iter().map(Part::Built).collect(),
        };
        self.publish_draft(draft, scratch, |_| Ok(()))
    }

    /// `check`: what must hold of the images there are, at the moment in which this one appears.
    pub(super) fn publish_draft(
        &self,
        draft: Draft,
        scratch: &Scratch,
        check: impl FnOnce(&Images) -> Result<()>,
    ) -> Result<ImageInfo> {
        for layer in draft.built() {
            store::seal(&layer.dir, &manifest(&layer.summary)).map_err(disk("sync a layer"))?;
        }
        let info = info(&draft)?;
        let built = draft.built().map(|layer| (layer.dir.as_path(), layer.summary.digest.as_str()));
        let info = self.place(info, built, scratch, check)?;
        self.remember(draft.built(), scratch);
        Ok(info)
    }

    /// Renames sealed layers, each with its digest, and then the image that names them, into place. `check`: as above.
    pub(super) fn place<'a>(
        &self,
        info: ImageInfo,
        made: impl IntoIterator<Item = (&'a std::path::Path, &'a str)>,
        scratch: &Scratch,
        check: impl FnOnce(&Images) -> Result<()>,
    ) -> Result<ImageInfo> {
        let json = serde_json::to_vec_pretty(&info).map_err(|e| disk("encode an image")(e.into()))?;
        let written = scratch.path().join("image.json");
        store::write_synced(&written, &json).map_err(disk("write an image"))?;

        let _changing = self.changing();
        check(&self.images())?;
        let key = (info.name.clone(), info.version.clone());
        environment::check_free(&self.environments(), &key)?;
        environment::check_kind(&self.environments(), &key, info.kind)?;
        for (dir, digest) in made {
            self.place_layer(dir, digest).map_err(disk("publish a layer"))?;
        }
        store::sync_dir(&self.dir.join(store::LAYERS)).map_err(disk("sync the layers"))?;
        let layers = info.layers.iter().map(|digest| self.load_layer(digest));
        let layers = layers.collect::<io::Result<_>>().map_err(disk("read a layer back"))?;
        let named = store::name(&self.dir.join(store::IMAGES), &info.name, &info.version, &written);
        named.map_err(disk("publish an image"))?;
        self.images_mut().insert(key, Arc::new(Resolved { info: info.clone(), layers, parts: Vec::new() }));
        tracing::info!(image = info.name, version = info.version, digest = info.digest, "image published");
        Ok(info)
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

impl Draft {
    /// What is in the scratch directory.
    fn built(&self) -> impl Iterator<Item = &Built> {
        self.layers.iter().filter_map(|layer| match layer {
            Part::Built(built) if !built.is_known() => Some(built),
            Part::Built(_) | Part::Kept(_) => None,
        })
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

fn info(draft: &Draft) -> Result<ImageInfo> {
    let layers: Vec<Manifest> = draft.layers.iter().map(Part::manifest).collect();
    let digests: Vec<String> = layers.iter().map(|layer| layer.digest.clone()).collect();
    let distinct: BTreeSet<&String> = digests.iter().collect();
    debug_assert_eq!(distinct.len(), digests.len(), "equal layers were dropped");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(ImageInfo {
        name: draft.name.clone(),
        version: draft.version.clone(),
        kind: draft.kind,
        digest: stack_digest(&digests, &draft.config)?,
        files: layers.iter().map(|layer| layer.files).sum(),
        size_bytes: layers.iter().map(|layer| layer.meta_bytes + layer.blob_bytes).sum(),
        config: draft.config.clone(),
        layers: digests,
        created_ms: now.as_millis() as u64,
        built_on: draft.built_on.clone(),
        in_use: 0,
        usage: Usage::default(),
    })
}

/// Over the layers and the config: images that behave alike have one digest, whatever they are called.
pub(super) fn stack_digest(layers: &[String], config: &ImageConfig) -> Result<String> {
    let json = serde_json::to_vec(&(layers, config)).map_err(|e| disk("encode an image")(e.into()))?;
    Ok(format!("blake3:{}", blake3::hash(&json).to_hex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_images_from_before_labels_are_as_they_were() {
        let layers = ["blake3:00".to_owned()];
        let mut config = ImageConfig { workdir: Some("/w".into()), ..ImageConfig::default() };
        config.env.insert("A".into(), "b".into());
        let before = br#"[["blake3:00"],{"env":{"A":"b"},"workdir":"/w","user":null}]"#;
        let digest = |config: &ImageConfig| stack_digest(&layers, config).unwrap();
        assert_eq!(digest(&config), format!("blake3:{}", blake3::hash(before).to_hex()));
        let plain = digest(&config);
        config.labels.insert("a".into(), "b".into());
        let labelled = digest(&config);
        config.exposed_ports.insert("80/tcp".into());
        assert!(plain != labelled && labelled != digest(&config));
    }
}
