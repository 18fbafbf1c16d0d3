//! Images: an OCI layout, or what `docker save` writes, each of their layers made an EROFS layer.
//!
//! Invariants: a blob is checked against its sha256 before it is parsed, and a layer's decompressed bytes against
//! the config's diff id; a layer that is equal to a higher one is dropped, for overlayfs refuses the same layer twice
//! and the higher one shows all that the lower would.

use std::{collections::HashSet, io::BufReader, path::Path};

use api::image::ImageConfig;

use super::{
    Built, Layer, Options,
    archive::{Feeder, Whiteouts},
    decompress,
    document::{ConfigDocument, Descriptor, DockerManifest, IndexOrManifest, is_hash, parse},
    spool::{Hashing, Spool, check},
};
use crate::{
    erofs::{Below, Limits, Writer},
    error::{Error, Result},
};
use sha2::Digest;

/// An index may point at an index; more than this is a riddle.
const INDEX_DEPTH_MAX: usize = 4;

/// An image in the spool.
pub struct Image {
    pub config: ImageConfig,
    layers: Vec<LayerPart>,
}

struct LayerPart {
    name: Vec<u8>,
    /// Of the bytes as they are stored.
    sha256: Option<String>,
    /// Of the decompressed bytes.
    diff_id: Option<String>,
}

/// The image that the archive holds; None where it holds none.
pub fn find(spool: &Spool) -> Result<Option<Image>> {
    if spool.part(b"oci-layout").is_some() && spool.part(b"index.json").is_some() {
        return find_oci(spool).map(Some);
    }
    let Ok(bytes) = spool.document(b"manifest.json", None) else { return Ok(None) };
    // A plain tar may hold a `manifest.json` of its own kind.
    let Ok(images) = serde_json::from_slice::<Vec<DockerManifest>>(&bytes) else { return Ok(None) };
    find_docker(spool, images).map(Some)
}

fn find_oci(spool: &Spool) -> Result<Image> {
    let mut name = b"index.json".to_vec();
    let mut sha256 = None;
    for _ in 0..INDEX_DEPTH_MAX {
        let document: IndexOrManifest = parse(&name, &spool.document(&name, sha256.as_deref())?)?;
        if let Some(manifests) = document.manifests {
            let hex = choose(&manifests)?.hex()?.to_owned();
            name = blob(&hex);
            sha256 = Some(hex);
            continue;
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else { break };
        let hex = config.hex()?;
        let config: ConfigDocument = parse(b"config", &spool.document(&blob(hex), Some(hex))?)?;
        let parts = layers.iter().map(|layer| {
            let hex = layer.hex()?;
            Ok(LayerPart { name: blob(hex), sha256: Some(hex.to_owned()), diff_id: None })
        });
        return image(&config, parts.collect::<Result<_>>()?);
    }
    Err(Error::refused("index.json leads to no image manifest"))
}

fn blob(hex: &str) -> Vec<u8> {
    format!("blobs/sha256/{hex}").into_bytes()
}

fn choose(manifests: &[Descriptor]) -> Result<&Descriptor> {
    let images: Vec<_> = manifests.iter().filter(|m| !m.is_attestation()).collect();
    let mut fitting: Vec<_> = match &images[..] {
        [one] => vec![*one],
        many => many.iter().copied().filter(|m| m.is_for_this_node()).collect(),
    };
    if fitting.is_empty() {
        fitting = images.clone();
    }
    fitting.dedup_by(|a, b| a.digest == b.digest);
    match &fitting[..] {
        [one] => Ok(one),
        [] => Err(Error::refused("the archive holds no image")),
        many => Err(Error::refused(format!("the archive holds {} images: save one of them", many.len()))),
    }
}

fn find_docker(spool: &Spool, images: Vec<DockerManifest>) -> Result<Image> {
    let [docker] = &images[..] else {
        return Err(Error::refused(format!("the archive holds {} images: save one of them", images.len())));
    };
    let name = docker.config.as_bytes();
    let config: ConfigDocument = parse(name, &spool.document(name, hash_in_name(&docker.config))?)?;
    let part = |name: &String| LayerPart {
        name: name.clone().into_bytes(),
        sha256: name.strip_prefix("blobs/sha256/").and_then(|hex| is_hash(hex).then(|| hex.to_owned())),
        diff_id: None,
    };
    image(&config, docker.layers.iter().map(part).collect())
}

/// `<hash>.json` of old, `blobs/sha256/<hash>` of late.
fn hash_in_name(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    Some(last.strip_suffix(".json").unwrap_or(last)).filter(|text| is_hash(text))
}

fn image(config: &ConfigDocument, mut layers: Vec<LayerPart>) -> Result<Image> {
    let diff_ids = config.diff_ids()?;
    if !diff_ids.is_empty() && diff_ids.len() != layers.len() {
        return Err(Error::refused("the image's config tells of another number of layers than its manifest"));
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
    Ok(Image { config: config.image_config(), layers })
}

/// Makes the image's layers, lowest first.
pub fn import(
    spool: &Spool,
    image: &Image,
    options: &Options,
    limits: &Limits,
    scratch: &Path,
) -> Result<Vec<Built>> {
    let mut below = Below::default();
    let mut built = Vec::new();
    let mut left = *limits;
    for (number, part) in image.layers.iter().enumerate() {
        let Made { layer, is_empty, hides_all } =
            import_layer(spool, part, number, options, &left, scratch, &mut below)?;
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
    built.retain(|layer| seen.insert(layer.summary.digest.clone()));
    built.reverse();
    if built.is_empty() {
        let layer = Layer::create(scratch, image.layers.len(), limits)?;
        built.push(layer.finish()?);
    }
    Ok(built)
}

struct Made {
    layer: Built,
    is_empty: bool,
    /// overlayfs does not look for an opaque root, so the layers below such a one are left out.
    hides_all: bool,
}

fn import_layer(
    spool: &Spool,
    part: &LayerPart,
    number: usize,
    options: &Options,
    limits: &Limits,
    scratch: &Path,
    below: &mut Below,
) -> Result<Made> {
    let section = spool.verified(&part.name, part.sha256.as_deref())?;
    let stream = decompress::open(section, limits.bytes_max)?;
    let Layer { dir, mut writer } = Layer::create(scratch, number, limits)?;
    writer.tree().set_below(std::mem::take(below));
    options.prepare(&mut writer)?;
    let mut hashing = Hashing::new(stream);
    let feeder =
        Feeder { options, writer: &mut writer, whiteouts: Some(Whiteouts::default()), suspect: None };
    match part.diff_id.as_ref().filter(|id| part.sha256.as_ref() != Some(id)) {
        Some(id) => {
            let whiteouts = feeder.feed(BufReader::with_capacity(256 << 10, &mut hashing))?;
            check(&part.name, Some(id), hashing.hash.finalize().as_slice())?;
            apply(whiteouts, number, &mut writer)?;
        }
        None => {
            let whiteouts = feeder.feed(hashing.into_stream())?;
            apply(whiteouts, number, &mut writer)?;
        }
    }
    let (summary, mut tree) = writer.finish()?;
    let (is_empty, hides_all) = (tree.is_empty(), tree.is_opaque());
    *below = if hides_all { Below::default() } else { tree.take_below() };
    below.cover(&tree);
    Ok(Made { layer: Built { dir, summary }, is_empty, hides_all })
}

/// The lowest layer has nothing to hide.
fn apply(whiteouts: Whiteouts, number: usize, writer: &mut Writer) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    whiteouts.removed.iter().try_for_each(|path| writer.tree().whiteout(path))?;
    whiteouts.opaque.iter().try_for_each(|path| writer.tree().opaque(path))
}
