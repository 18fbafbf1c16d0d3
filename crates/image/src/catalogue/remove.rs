//! Removing images, and layers that nothing names any more.
//!
//! Invariants: the image's name goes first, so a kill in between leaves layers without a name and never a name
//! without layers; a layer leaves its place by a rename, so it is there whole or not at all.

use std::{collections::HashSet, fs, io};

use api::{Code, Error, Result};

use super::{
    Catalogue, Key, disk, environment, resolve,
    store::{self, Scratch},
};
use crate::pull::blobs;

impl Catalogue {
    /// Removes an image (by digest: under all its names) and those of its layers that no other image has.
    /// `in_use` is asked of digests of images and of layers. Errors: `not_found`; `conflict` while a sandbox lives on it,
    /// or on a layer that no other image has, or an environment follows it.
    pub fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        let _changing = self.changing();
        let image = resolve::find_image(&self.images(), reference)?;
        let by_digest = reference.starts_with("blake3:");
        let keys: Vec<_> = self
            .images()
            .iter()
            .filter(|(key, other)| match by_digest {
                true => other.info.digest == image.info.digest,
                false => **key == resolve::key(reference),
            })
            .map(|(key, _)| key.clone())
            .collect();
        environment::check_unfollowed(&self.environments(), &self.images(), &keys)?;
        let alone = self.unnamed_without(&keys, &image.info.layers);
        if in_use(&image.info.digest) || alone.iter().any(|layer| in_use(layer)) {
            let message =
                format!("`{}:{}` is in use: stop its sandboxes first", image.info.name, image.info.version);
            return Err(Error::new(Code::Conflict, message));
        }
        for key in keys {
            store::unname(&self.dir.join(store::IMAGES), &key).map_err(disk("remove an image"))?;
            self.images_mut().remove(&key);
        }
        for layer in alone {
            self.discard(&layer).map_err(disk("remove a layer"))?;
        }
        self.forget_gone();
        Ok(())
    }

    /// Removes layers that no image names and no sandbox uses: what a replaced image or a crash left. Returns how
    /// many. To be called once it is known what lives, and from time to time.
    pub fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize> {
        let _changing = self.changing();
        let on_disk = || -> io::Result<Vec<String>> {
            let names = fs::read_dir(self.dir.join(store::LAYERS))?;
            names.map(|name| Ok(format!("blake3:{}", name?.file_name().to_string_lossy()))).collect()
        };
        let on_disk = on_disk().map_err(disk("read the layers"))?;
        let unused: Vec<_> =
            self.unnamed_without(&[], &on_disk).into_iter().filter(|layer| !in_use(layer)).collect();
        for layer in &unused {
            self.discard(layer).map_err(disk("remove a layer"))?;
        }
        self.forget_gone();
        blobs::sweep(&self.dir).map_err(disk("sweep the blobs"))?;
        Ok(unused.len())
    }

    /// Those of `layers` that no image names but, it may be, those of `keys`, no environment, and no pull is about to.
    pub(super) fn unnamed_without(&self, keys: &[Key], layers: &[String]) -> Vec<String> {
        let images = self.images();
        let others = images.iter().filter(|(key, _)| !keys.contains(key));
        let environments = self.environments();
        let exact = environments.values().flat_map(|environment| environment.layers_kept());
        let named: HashSet<&String> = others.flat_map(|(_, image)| &image.info.layers).chain(exact).collect();
        layers.iter().filter(|layer| !named.contains(layer) && !self.pins.holds(layer)).cloned().collect()
    }

    pub(super) fn discard(&self, digest: &str) -> io::Result<()> {
        let scratch = Scratch::create(&self.dir).map_err(io::Error::other)?;
        match fs::rename(self.layer_dir(digest), scratch.path().join("layer")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}
