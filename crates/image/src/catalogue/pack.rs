//! pack: an overlay's upper directory becomes a layer, and an image that names it.

use std::path::Path;

use api::{
    Result,
    image::{ImageConfig, LayerKind},
    snapshot::{PackReport, PackRequest},
};

use super::{Catalogue, publish::Named, store::Scratch};
use crate::{
    import::{self, Imported},
    scrub::Scrubber,
};

/// What the diff was written over.
#[derive(Debug, Clone, Default)]
pub struct Under {
    /// Digests, lowest first. The caller keeps them from being removed.
    pub layers: Vec<String>,
    pub config: ImageConfig,
}

impl Catalogue {
    /// Packs `upper`, which nobody changes meanwhile. Blocks. `frozen_us` of the report is 0.
    pub fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport> {
        request.validate()?;
        let scratch = Scratch::create(&self.dir)?;
        let mut scrubber = Scrubber::new(&request.scrub, upper)?;
        let built = import::import_upper(&self.limits, upper, scratch.path(), &mut |path, metadata| {
            scrubber.judge(path, metadata)
        })?;
        let summary = built.summary.clone();
        let named = Named { name: &request.name, version: &request.version, kind: request.kind };
        let imported = match request.kind {
            LayerKind::Base => Imported { below: under.layers, layers: vec![built], config: under.config },
            LayerKind::Workspace | LayerKind::Toolkit => Imported::only(vec![built], ImageConfig::default()),
        };
        let image = self.publish(&named, imported, &scratch)?;
        Ok(PackReport {
            image,
            layer: summary.digest,
            files: summary.files,
            size_bytes: summary.meta_bytes + summary.blob_bytes,
            frozen_us: 0,
            scrubbed: scrubber.told,
            scrubbed_count: scrubber.count,
        })
    }
}
