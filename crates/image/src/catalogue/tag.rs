//! tag: another name for layers that are there.
//!
//! Invariant: layers that went before the new name is there make it `not_found`; from then on they stay by the new name.

use std::io;

use api::{
    Result,
    image::{ImageInfo, TagRequest},
};

use super::{
    Catalogue,
    publish::{Draft, Part},
    resolve,
    store::{self, Scratch},
};

impl Catalogue {
    /// Names an image anew; what had that name loses it. Blocks. Errors: `not_found`.
    pub fn tag(&self, reference: &str, request: &TagRequest) -> Result<ImageInfo> {
        request.validate()?;
        let image = self.resolve(reference, None)?;
        let scratch = Scratch::create(&self.dir)?;
        let layers = image.layers.iter();
        let layers = layers.map(|layer| store::load_manifest(&self.dir, &layer.digest).map(Part::Kept));
        // They may have gone since they were found.
        let gone = |_| resolve::not_found(reference);
        let layers = layers.collect::<io::Result<_>>().map_err(gone)?;
        let draft = Draft {
            name: request.name.clone(),
            version: request.version.clone(),
            kind: image.info.kind,
            config: request.config.clone().unwrap_or_else(|| image.info.config.clone()),
            built_on: image.info.built_on.clone(),
            layers,
        };
        self.publish_draft(draft, &scratch, |_| {
            let mut layers = image.layers.iter().map(|layer| self.load_layer(&layer.digest));
            layers.try_for_each(|there| there.map(drop)).map_err(gone)
        })
    }
}
