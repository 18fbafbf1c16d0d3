//! From a reference to an image, or to an environment as an image: `name`, `name:version` or `blake3:<hex>`. From memory:
//! microseconds.

use std::sync::Arc;

use api::{
    Code, Error, Result,
    image::{ImageInfo, LayerKind},
};

use super::{Catalogue, Images, LayerFiles, Resolved};
use crate::erofs::read::Reader;

const VERSION_DEFAULT: &str = "latest";

impl Catalogue {
    /// Errors: `not_found`.
    pub fn inspect(&self, reference: &str) -> Result<ImageInfo> {
        self.find(reference).map(|image| image.info.clone())
    }

    /// Errors: `not_found`.
    fn find(&self, reference: &str) -> Result<Arc<Resolved>> {
        let image = find_image(&self.images(), reference);
        match image {
            Err(error) if error.code == Code::NotFound => self.find_environment(reference).map(Arc::new),
            found => found,
        }
    }

    /// Its layers, open, lowest first: they can be read to their end even where the image is removed meanwhile.
    pub(super) fn open_layers(&self, image: &Resolved) -> Result<Vec<Reader>> {
        let open = |layer: &LayerFiles| Reader::open(&layer.meta, layer.blob.as_deref());
        let readers = image.layers.iter().map(open).collect::<Result<_, crate::Error>>();
        // It may have gone since it was found.
        readers.map_err(|error| self.find(&image.info.digest).err().unwrap_or_else(|| error.into()))
    }

    /// The image and its files. Errors: `not_found`; `invalid_argument` where it is not of the kind that is expected.
    pub fn resolve(&self, reference: &str, expected: Option<LayerKind>) -> Result<Arc<Resolved>> {
        let image = self.find(reference)?;
        if let Some(kind) = expected {
            check_kind(&image.info, reference, kind)?;
        }
        Ok(image)
    }
}

/// Errors: `invalid_argument`.
pub(super) fn check_kind(image: &ImageInfo, reference: &str, expected: LayerKind) -> Result<()> {
    match image.kind == expected {
        true => Ok(()),
        false => {
            let text = format!("`{reference}` is a {}, not a {}", word(image.kind), word(expected));
            Err(Error::invalid(text))
        }
    }
}

/// Of several images with one digest, the first by name: they differ in nothing else.
pub(super) fn find_image(images: &Images, reference: &str) -> Result<Arc<Resolved>> {
    let found = if reference.starts_with("blake3:") {
        images.values().find(|image| image.info.digest == reference)
    } else {
        images.get(&key(reference))
    };
    found.cloned().ok_or_else(|| not_found(reference))
}

pub(super) fn not_found(reference: &str) -> Error {
    let reference: String = reference.chars().take(128).collect();
    Error::not_found(format!("no image `{reference}` on this node: import it first"))
}

pub(super) fn key(reference: &str) -> (String, String) {
    let (name, version) = reference.split_once(':').unwrap_or((reference, VERSION_DEFAULT));
    (name.to_owned(), version.to_owned())
}

fn word(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Base => "base",
        LayerKind::Workspace => "workspace",
        LayerKind::Toolkit => "toolkit",
    }
}
