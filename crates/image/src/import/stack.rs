//! From the layers of an image to EROFS layers, lowest first; the same for an archive and for a registry.
//!
//! Invariants: a layer's decompressed bytes are checked against the config's diff id; a layer that is equal to a
//! higher one is dropped, for overlayfs refuses the same layer twice and the higher one shows all that the lower would;
//! a layer's key covers all that decides its bytes, so a known layer is the one that would be made.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    path::Path,
};

use api::image::ImageConfig;
use sha2::Digest;

use super::{
    Built, Layer, Options, Origin, Trace,
    archive::{Feeder, Whiteouts},
    decompress,
    document::ConfigDocument,
    spool::{Hashing, Spool, check},
};
use crate::{
    erofs::{Below, Limits, Tree, Writer},
    error::{Error, Result},
};

/// Changes whenever the same layer would be made of other bytes: what is known from before is then made anew.
const FORMAT: &[u8] = b"dsec layer 1";
/// sha256 of an empty tar, two blocks of zeros: what builders write for a step that changed nothing.
const EMPTY_TAR: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

/// An image, its layers lowest first.
pub struct Image {
    pub config: ImageConfig,
    pub layers: Vec<LayerPart>,
}

pub struct LayerPart {
    /// For messages, and of a part of an archive.
    pub name: Vec<u8>,
    /// Of the bytes as they are stored.
    pub sha256: Option<String>,
    /// Of the decompressed bytes.
    pub diff_id: Option<String>,
}

impl LayerPart {
    /// Whether it is known without a look that nothing is in it.
    pub fn is_empty_tar(&self) -> bool {
        self.diff_id.as_deref() == Some(EMPTY_TAR)
    }
}

impl Image {
    /// `layers` without diff ids; the config has them.
    pub fn new(config: &ConfigDocument, mut layers: Vec<LayerPart>) -> Result<Self> {
        let diff_ids = config.diff_ids()?;
        if !diff_ids.is_empty() && diff_ids.len() != layers.len() {
            return Err(Error::refused(
                "the image's config tells of another number of layers than its manifest",
            ));
        }
        if layers.len() > api::limit::LAYERS_MAX {
            return Err(Error::refused(format!(
                "the image has {} layers, more than {}: squash it",
                layers.len(),
                api::limit::LAYERS_MAX
            )));
        }
        for (layer, id) in layers.iter_mut().zip(diff_ids) {
            layer.diff_id = Some(id);
        }
        Ok(Self { config: config.image_config(), layers })
    }

    /// For each layer what [`Known`] knows it by; None where the image does not tell what is in it.
    pub fn keys(&self, options: &Options) -> Vec<Option<String>> {
        let mut hash = blake3::Hasher::new();
        let owner = options.owner.map_or(String::new(), |(uid, gid)| format!("{uid}:{gid}"));
        for part in [FORMAT, &options.prefix, owner.as_bytes()] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut is_told = true;
        let keys = self.layers.iter().map(|layer| {
            is_told &= layer.diff_id.is_some();
            hash.update(layer.diff_id.as_deref().unwrap_or_default().as_bytes());
            is_told.then(|| hash.finalize().to_hex().to_string())
        });
        keys.collect()
    }
}

/// Where the bytes of layers come from.
pub trait Source {
    /// Those of one layer, as they are stored, their sha256 checked. Asked for in order, each at most once.
    fn open(&mut self, number: usize, part: &LayerPart) -> Result<Box<dyn Read + '_>>;
}

impl Source for &Spool {
    fn open(&mut self, _: usize, part: &LayerPart) -> Result<Box<dyn Read + '_>> {
        Ok(Box::new(self.verified(&part.name, part.sha256.as_deref())?))
    }
}

/// Layers that were made before.
pub trait Known {
    /// None: not known, or not whole.
    fn find(&self, key: &str) -> Option<KnownLayer>;
}

pub struct KnownLayer {
    pub built: Built,
    pub hides_all: bool,
    /// For [`Below::follow`].
    pub trace: Vec<u8>,
}

pub struct NothingKnown;

impl Known for NothingKnown {
    fn find(&self, _: &str) -> Option<KnownLayer> {
        None
    }
}

/// What an image's layers are made with.
pub struct Stack<'a> {
    pub options: &'a Options,
    pub limits: &'a Limits,
    pub scratch: &'a Path,
    pub known: &'a dyn Known,
}

struct Made {
    layer: Built,
    is_empty: bool,
    /// overlayfs does not look for an opaque root, so the layers below such a one are left out.
    hides_all: bool,
}

impl Stack<'_> {
    /// Makes the image's layers, or finds them.
    pub fn build(&mut self, source: &mut dyn Source, image: &Image) -> Result<Vec<Built>> {
        let keys = image.keys(self.options);
        let mut below = Below::default();
        let mut built = Vec::new();
        let mut left = *self.limits;
        for (number, (part, key)) in image.layers.iter().zip(keys).enumerate() {
            let made = match key.as_deref().and_then(|key| self.known(key, &mut below)) {
                Some(known) => known,
                None if part.is_empty_tar() && self.options.prefix.is_empty() => continue,
                None => {
                    let stream = source.open(number, part)?;
                    self.layer(stream, part, number, key, &left, &mut below)?
                }
            };
            let Made { layer, is_empty, hides_all } = made;
            left.entries_max = left.entries_max.saturating_sub(layer.summary.files);
            left.tree_bytes_max = left.tree_bytes_max.saturating_sub(layer.summary.meta_bytes);
            left.bytes_max = left.bytes_max.saturating_sub(layer.summary.data_bytes);
            if hides_all {
                built.clear();
            }
            if !is_empty {
                built.push(layer);
            }
        }
        let mut seen = HashSet::new();
        built.reverse();
        built.retain(|layer: &Built| seen.insert(layer.summary.digest.clone()));
        built.reverse();
        if built.is_empty() {
            built.push(Layer::create(self.scratch, image.layers.len(), self.limits)?.finish()?);
        }
        Ok(built)
    }

    fn known(&self, key: &str, below: &mut Below) -> Option<Made> {
        let KnownLayer { built: layer, hides_all, trace } = self.known.find(key)?;
        if hides_all {
            *below = Below::default();
        }
        below.follow(&trace)?;
        Some(Made { layer, is_empty: false, hides_all })
    }

    fn layer(
        &self,
        stored: impl Read,
        part: &LayerPart,
        number: usize,
        key: Option<String>,
        limits: &Limits,
        below: &mut Below,
    ) -> Result<Made> {
        let Layer { dir, mut writer } = Layer::create(self.scratch, number, limits)?;
        writer.tree().set_below(std::mem::take(below));
        self.options.prepare(&mut writer)?;
        let whiteouts = feed(self.options, stored, part, limits, &mut writer)?;
        apply(whiteouts, number, &mut writer)?;
        let (summary, mut tree) = writer.finish()?;
        let (is_empty, hides_all) = (tree.is_empty(), tree.is_opaque());
        *below = if hides_all { Below::default() } else { tree.take_below() };
        let path = self.scratch.join(format!("{number}.trace"));
        cover(below, &tree, hides_all, &path).map_err(Error::disk("write a layer's trace"))?;
        let origin = key.map_or(Origin::Tree, |key| Origin::Image(Trace { key, path }));
        Ok(Made { layer: Built { dir, summary, origin }, is_empty, hides_all })
    }
}

/// Reads the layer's tar into the writer, checking its diff id.
fn feed(
    options: &Options,
    stored: impl Read,
    part: &LayerPart,
    limits: &Limits,
    writer: &mut Writer,
) -> Result<Whiteouts> {
    let stream = decompress::open(stored, limits.bytes_max)?;
    let feeder = Feeder { options, writer, whiteouts: Some(Whiteouts::default()), suspect: None };
    // Stored plain, its bytes have been hashed already.
    let promised = part.diff_id.as_ref().filter(|id| !stream.is_plain || part.sha256.as_ref() != Some(id));
    let Some(id) = promised else { return feeder.feed(stream) };
    let mut hashing = Hashing::new(stream);
    let whiteouts = feeder.feed(BufReader::with_capacity(256 << 10, &mut hashing))?;
    check(&part.name, Some(id), hashing.hash.finalize().as_slice())?;
    Ok(whiteouts)
}

/// Lays the tree over what is known, keeping a trace: its first byte tells whether the tree hides all below it.
fn cover(below: &mut Below, tree: &Tree, hides_all: bool, path: &Path) -> std::io::Result<()> {
    let mut trace = BufWriter::new(File::create_new(path)?);
    trace.write_all(&[u8::from(hides_all)])?;
    below.cover(tree, &mut trace)?;
    trace.flush()
}

/// The lowest layer has nothing to hide.
fn apply(whiteouts: Whiteouts, number: usize, writer: &mut Writer) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    whiteouts.removed.iter().try_for_each(|path| writer.tree().whiteout(path))?;
    whiteouts.opaque.iter().try_for_each(|path| writer.tree().opaque(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_tar_is_known_by_its_hash() {
        let hash = sha2::Sha256::digest([0; 1024]);
        check(b"empty", Some(EMPTY_TAR), hash.as_slice()).unwrap();
    }
}
