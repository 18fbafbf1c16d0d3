//! pack: an overlay's upper directory becomes a layer, and an image that names it.

use std::{io, path::Path};

use api::{
    Result,
    image::{ImageConfig, LayerKind},
    limit,
    snapshot::{PackReport, PackRequest},
};

use super::{
    Catalogue, disk,
    publish::{Draft, Part},
    store::{self, Scratch},
};
use crate::{
    erofs::read::Reader,
    import,
    scrub::{Lower, Scrubber},
};

/// What the diff was written over.
#[derive(Debug, Clone, Default)]
pub struct Under {
    /// Digests, lowest first. The caller keeps them from being removed.
    pub layers: Vec<String>,
    pub config: ImageConfig,
    /// The digest of the image, where one is meant.
    pub image: Option<String>,
}

impl Catalogue {
    fn open_digests(&self, layers: &[String]) -> Result<Vec<Reader>, crate::Error> {
        let open = |digest: &String| {
            let layer = self.load_layer(digest).map_err(crate::Error::disk("read a layer"))?;
            Reader::open(&layer.meta, layer.blob.as_deref())
        };
        layers.iter().map(open).collect()
    }

    /// Packs `upper`, which nobody changes meanwhile. Blocks. `frozen_us` of the report is 0.
    pub fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport> {
        request.validate()?;
        let scratch = Scratch::create(&self.dir)?;
        let below = under.layers.clone();
        let lower = Lower::new(upper, || self.open_digests(&below));
        let mut scrubber = Scrubber::new(&request.scrub, upper, lower)?;
        let built = import::import_upper(&self.limits, upper, scratch.path(), &mut |path, metadata| {
            scrubber.judge(path, metadata)
        })?;
        let (told, count) = (scrubber.told, scrubber.count);
        let summary = built.summary.clone();
        let alone = request.kind != LayerKind::Base;
        let under = if alone { Under { image: under.image, ..Under::default() } } else { under };
        // The same layer twice is there once, where it is seen.
        let below = under.layers.iter().filter(|digest| **digest != summary.digest);
        let below = below.map(|digest| store::load_manifest(&self.dir, digest).map(Part::Kept));
        let mut layers = below.collect::<io::Result<Vec<_>>>().map_err(disk("read a layer"))?;
        layers.push(Part::Built(built));
        if layers.len() > limit::LAYERS_MAX {
            return Err(api::Error::invalid(format!(
                "the image would have {} layers, at most {}: merge some of them",
                layers.len(),
                limit::LAYERS_MAX
            )));
        }
        let draft = Draft {
            name: request.name.clone(),
            version: request.version.clone(),
            kind: request.kind,
            config: under.config,
            built_on: under.image,
            layers,
        };
        let image = self.publish_draft(draft, &scratch, |_| Ok(()))?;
        Ok(PackReport {
            image,
            layer: summary.digest,
            files: summary.files,
            size_bytes: summary.meta_bytes + summary.blob_bytes,
            frozen_us: 0,
            scrubbed: told,
            scrubbed_count: count,
        })
    }
}
