//! Exports read layers that are there; an image that is removed meanwhile is exported to its end all the same.

use api::{Result, image::ExportFormat};

use super::{Catalogue, store::Scratch};
use crate::export::Export;

impl Catalogue {
    /// Opens an image for an export, and looks whether the format can hold it. Blocks.
    /// Errors: `not_found`; `invalid_argument` where a name or an attribute does not fit the format.
    pub fn export(&self, reference: &str, format: ExportFormat) -> Result<Export> {
        let image = self.resolve(reference, None)?;
        let layers = self.open_layers(&image)?;
        let scratch = Scratch::create(&self.dir)?;
        let export = Export { info: image.info.clone(), layers, limits: self.limits, format, scratch };
        export.check()?;
        Ok(export)
    }
}
