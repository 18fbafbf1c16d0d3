//! Which image an archive holds: an OCI layout, or what `docker save` writes.
//!
//! Invariant: a document is checked against its sha256 before it is parsed.

use super::{
    document::{ConfigDocument, Descriptor, DockerManifest, IndexOrManifest, Platform, is_hash, parse},
    spool::Spool,
    stack::{Image, LayerPart},
};
use crate::error::{Error, Result};

/// An index may point at an index; more than this is a riddle.
pub const INDEX_DEPTH_MAX: usize = 4;

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
        return Image::new(&config, parts.collect::<Result<_>>()?);
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
        many => many.iter().copied().filter(|m| m.is_for(&Platform::of_this_node())).collect(),
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
    Image::new(&config, docker.layers.iter().map(part).collect())
}

/// `<hash>.json` of old, `blobs/sha256/<hash>` of late.
fn hash_in_name(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    Some(last.strip_suffix(".json").unwrap_or(last)).filter(|text| is_hash(text))
}
