//! adopt: an image of another node, its layers fetched and checked by who calls, gets its place here.

use std::path::PathBuf;

use api::{
    Error, Result,
    image::{ImageInfo, Usage},
};

use super::{
    Catalogue, LayerFiles, disk, publish,
    store::{self, Manifest, Scratch},
};
use crate::import::{BLOB, META};

/// A layer that was fetched into a directory of a [`Scratch`].
pub struct Arrived {
    pub manifest: Manifest,
    pub dir: PathBuf,
}

impl Catalogue {
    /// Where to put what arrives.
    pub fn scratch(&self) -> Result<Scratch> {
        Scratch::create(&self.dir)
    }

    /// The names that a layer's files have in its directory: meta and blob.
    pub const FILES: (&'static str, &'static str) = (META, BLOB);

    /// A layer that is here, whole or remote.
    pub fn layer(&self, digest: &str) -> Option<(Manifest, LayerFiles)> {
        let files = self.load_layer(digest).ok()?;
        Some((store::load_manifest(&self.dir, digest).ok()?, files))
    }

    /// Names `image` and places `arrived`, those of its layers that were not here. Where another image has its name, it
    /// gets a version that says its digest: a fetch replaces nothing.
    ///
    /// Errors: `internal` where the image's digest is not that of its layers and config.
    pub fn adopt(&self, image: &ImageInfo, arrived: &[Arrived], scratch: &Scratch) -> Result<ImageInfo> {
        let digest = publish::stack_digest(&image.layers, &image.config)?;
        let version_short = |digest: &str| digest.trim_start_matches("blake3:").chars().take(12).collect();
        if digest != image.digest {
            let text = format!("the store's record of `{}:{}` is damaged", image.name, image.version);
            return Err(Error::internal(text));
        }
        for layer in arrived {
            store::seal(&layer.dir, &layer.manifest).map_err(disk("sync a layer"))?;
        }
        let mut info = ImageInfo { in_use: 0, usage: Usage::default(), ..image.clone() };
        api::spec::check_name("name", &info.name)?;
        api::spec::check_name("version", &info.version)?;
        let taken = self.inspect(&format!("{}:{}", info.name, info.version));
        if taken.is_ok_and(|other| other.digest != digest) {
            info.version = version_short(&digest);
        }
        let made = arrived.iter().map(|layer| (layer.dir.as_path(), layer.manifest.digest.as_str()));
        self.place(info, made, scratch, |_| Ok(()))
    }
}
