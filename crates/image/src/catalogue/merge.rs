//! Merging layers of an image that is there, into a new version of it. Offline: sandboxes live on as they are.
//!
//! Invariant: the layers are open before the first is read, so an image that is removed meanwhile ends the merge with
//! `conflict` at its publication, not with a torn layer.

use std::collections::HashSet;

use api::{
    Code, Error, Result,
    image::{ImageInfo, LayerKind, MergeRequest},
};

use super::{
    Catalogue, Images, disk, environment,
    publish::{Draft, Part},
    store::{self, Scratch},
};
use crate::{
    erofs::read::Reader,
    merge::{Below, merge, plan_merge},
};

impl Catalogue {
    /// Makes `request.version` of an image: the same content in fewer layers. Blocks.
    /// Errors: `not_found`; `already_exists`; `invalid_argument` where no two neighbours are small enough.
    pub fn merge(&self, reference: &str, request: &MergeRequest) -> Result<ImageInfo> {
        request.validate()?;
        let image = self.resolve(reference, None)?;
        let key = (image.info.name.clone(), request.version.clone());
        free(&self.images(), &key)?;
        environment::check_free(&self.environments(), &key)?;
        let readers = self.open_layers(&image)?;
        let sizes: Vec<u64> = readers.iter().map(Reader::size_bytes).collect();
        let ranges = plan_merge(&sizes, request.threshold_bytes);
        if ranges.len() == readers.len() {
            return Err(nothing_to_merge(readers.len(), request));
        }
        let scratch = Scratch::create(&self.dir)?;
        let mut layers = Vec::new();
        for range in ranges {
            layers.push(match range.len() {
                1 => {
                    let digest = &image.layers[range.start].digest;
                    Part::Kept(store::load_manifest(&self.dir, digest).map_err(disk("read a layer"))?)
                }
                _ => {
                    let is_lowest = range.start == 0 && image.info.kind == LayerKind::Base;
                    let below = if is_lowest { Below::Nothing } else { Below::Something };
                    let number = range.start;
                    Part::Built(merge(&readers[range], below, &self.limits, scratch.path(), number)?)
                }
            });
        }
        let draft = Draft {
            name: key.0.clone(),
            version: key.1.clone(),
            kind: image.info.kind,
            config: image.info.config.clone(),
            built_on: image.info.built_on.clone(),
            layers: topmost(layers),
        };
        self.publish_draft(draft, &scratch, |images| {
            free(images, &key)?;
            let is_environment = !image.parts.is_empty();
            match is_environment || images.values().any(|other| other.info.digest == image.info.digest) {
                true => Ok(()),
                false => Err(Error::new(Code::Conflict, "the image was removed while it was merged")),
            }
        })
    }
}

fn free(images: &Images, key: &(String, String)) -> Result<()> {
    match images.contains_key(key) {
        true => Err(Error::new(
            Code::AlreadyExists,
            format!("`{}:{}` is there already: take another version, or remove it first", key.0, key.1),
        )),
        false => Ok(()),
    }
}

fn nothing_to_merge(layers: usize, request: &MergeRequest) -> Error {
    Error::invalid(match layers {
        1 => "nothing to merge: the image has one layer".to_owned(),
        _ => format!(
            "nothing to merge: no two neighbours of its {layers} layers have {} bytes or less together",
            request.threshold_bytes
        ),
    })
}

/// Of equal layers the topmost, which hides the others in full; overlayfs takes no layer twice.
fn topmost(mut layers: Vec<Part>) -> Vec<Part> {
    let mut seen = HashSet::new();
    layers.reverse();
    layers.retain(|layer| seen.insert(layer.digest().to_owned()));
    layers.reverse();
    layers
}
