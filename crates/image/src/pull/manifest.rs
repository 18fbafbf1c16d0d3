//! From a reference to an image: through an index to the manifest of the platform, and its config.
//!
//! Invariants: an index that leads on and on is refused; so is what is no image, before anything large is fetched; the
//! sizes of all layers together are within the limits.

use std::collections::BTreeSet;

use api::{
    Code, Error, Result,
    pull::{PullRequest, Reference},
};

use super::registry::Registry;
use crate::{
    Limits,
    import::{
        document::{ConfigDocument, Descriptor, IndexOrManifest, Platform, parse},
        oci::INDEX_DEPTH_MAX,
        stack::{Image, LayerPart},
    },
};

/// What config blobs of images are called.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// An image whose layers are still at the registry.
pub struct Resolved {
    /// The hex of its manifest.
    pub manifest: String,
    pub image: Image,
    /// One for each of the image's layers.
    pub blobs: Vec<BlobPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPart {
    pub hex: String,
    pub size: u64,
}

/// Asks for everything but the layers.
pub async fn resolve(
    registry: &Registry,
    reference: &Reference,
    request: &PullRequest,
    limits: &Limits,
) -> Result<Resolved> {
    let wanted = request.platform.as_deref().map_or_else(Platform::of_this_node, platform_of);
    let mut version = reference.version().to_owned();
    for _ in 0..INDEX_DEPTH_MAX {
        let (bytes, hex) = registry.manifest(&version).await?;
        let document: IndexOrManifest = parse(b"the manifest", &bytes)?;
        if document.schema_version == Some(1) {
            let message = "the registry has this image in docker's first format only, which is not supported";
            return Err(Error::new(Code::Unsupported, message));
        }
        if let Some(manifests) = document.manifests {
            version = format!("sha256:{}", choose(&manifests, &wanted)?.hex()?);
            continue;
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(Error::invalid("the reference leads to something that is no image"));
        };
        let blobs = blobs_of(&config, &layers, limits)?;
        let config: ConfigDocument = parse(b"the config", &registry.document("the config", &config).await?)?;
        // Configs leave the variant out where the index has it.
        let any_variant = Platform { variant: None, ..wanted.clone() };
        if let Some(found) = config.platform().filter(|found| !found.fits(&any_variant)) {
            return Err(other_platform(&wanted, [name_of(&found)].into()));
        }
        let image = Image::new(&config, blobs.iter().map(part).collect())?;
        return Ok(Resolved { manifest: hex, image, blobs });
    }
    Err(Error::invalid(format!("the reference leads through more than {INDEX_DEPTH_MAX} indexes")))
}

fn part(blob: &BlobPart) -> LayerPart {
    let name = format!("sha256:{}", blob.hex).into_bytes();
    LayerPart { name, sha256: Some(blob.hex.clone()), diff_id: None }
}

/// Before the config is fetched: what is no image has a config of another kind.
fn blobs_of(config: &Descriptor, layers: &[Descriptor], limits: &Limits) -> Result<Vec<BlobPart>> {
    if !config.media_type.is_empty() && !CONFIGS.contains(&config.media_type.as_str()) {
        let kind: String = config.media_type.chars().filter(|c| c.is_ascii_graphic()).take(128).collect();
        return Err(Error::invalid(format!(
            "the reference leads to something that is no image, but `{kind}`"
        )));
    }
    if layers.len() > api::limit::LAYERS_MAX {
        let most = api::limit::LAYERS_MAX;
        return Err(Error::invalid(format!(
            "the image has {} layers, more than {most}: squash it",
            layers.len()
        )));
    }
    let mut left = limits.bytes_max;
    let blobs = layers.iter().map(|layer| {
        let size =
            layer.size.ok_or_else(|| Error::invalid("the manifest tells of a layer without its size"))?;
        left = left.checked_sub(size).ok_or_else(|| {
            Error::invalid(format!(
                "the image is larger than the {} bytes that this node takes",
                limits.bytes_max
            ))
        })?;
        Ok(BlobPart { hex: layer.hex()?.to_owned(), size })
    });
    blobs.collect()
}

/// The first that fits; of several, one that runs on any processor of its kind.
fn choose<'a>(manifests: &'a [Descriptor], wanted: &Platform) -> Result<&'a Descriptor> {
    let images: Vec<_> = manifests.iter().filter(|m| !m.is_attestation()).collect();
    let fitting: Vec<_> = images.iter().filter(|m| m.is_for(wanted)).collect();
    let variant = |m: &Descriptor| m.platform.as_ref().and_then(|p| p.variant.clone());
    let any = fitting.iter().find(|m| matches!(variant(m).as_deref(), None | Some("v1") | Some("v8")));
    if let Some(found) = any.or(fitting.first()) {
        return Ok(found);
    }
    match &images[..] {
        // Its config will tell what it is for.
        [one] if one.platform.is_none() => Ok(one),
        [] => Err(Error::invalid("the reference leads to an index without images")),
        many => {
            let there = many.iter().filter_map(|m| m.platform.as_ref()).map(name_of).collect();
            Err(other_platform(wanted, there))
        }
    }
}

fn other_platform(wanted: &Platform, there: BTreeSet<String>) -> Error {
    let names: Vec<_> = there.into_iter().take(16).collect();
    let message = format!("the image is not there for {}, but for {}", name_of(wanted), names.join(", "));
    Error::not_found(message)
}

/// `linux/ARCHITECTURE[/VARIANT]`, which has been checked.
fn platform_of(text: &str) -> Platform {
    let mut parts = text.split('/').map(str::to_owned);
    let os = parts.next().unwrap_or_default();
    Platform { os, architecture: parts.next().unwrap_or_default(), variant: parts.next() }
}

/// Of a stranger's words: short, and nothing that drives a terminal.
fn name_of(platform: &Platform) -> String {
    let parts = [Some(&platform.os), Some(&platform.architecture), platform.variant.as_ref()];
    let parts = parts
        .into_iter()
        .flatten()
        .map(|part| part.chars().filter(|c| c.is_ascii_alphanumeric()).take(32).collect::<String>());
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn descriptors(json: serde_json::Value) -> Vec<Descriptor> {
        serde_json::from_value(json).unwrap()
    }

    fn of(os: &str, architecture: &str, variant: Option<&str>, digest: &str) -> serde_json::Value {
        let platform = serde_json::json!({"os": os, "architecture": architecture, "variant": variant});
        serde_json::json!({"digest": digest, "size": 1, "platform": platform})
    }

    #[test]
    fn the_platform_decides() {
        let index = descriptors(serde_json::json!([
            of("unknown", "unknown", None, "attestation"),
            of("windows", "amd64", None, "windows"),
            of("linux", "amd64", Some("v3"), "amd64v3"),
            of("linux", "amd64", None, "amd64"),
            of("linux", "arm", Some("v6"), "armv6"),
            of("linux", "arm", Some("v7"), "armv7"),
        ]));
        let pick = |platform: &str| choose(&index, &platform_of(platform)).map(|m| m.digest.clone());
        assert_eq!(pick("linux/amd64").unwrap(), "amd64");
        assert_eq!(pick("linux/amd64/v3").unwrap(), "amd64v3");
        assert_eq!(pick("linux/arm").unwrap(), "armv6");
        assert_eq!(pick("linux/arm/v7").unwrap(), "armv7");
        let error = pick("linux/riscv64").unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        assert!(error.message.contains("linux/amd64") && !error.message.contains("unknown"), "{error}");
    }

    #[test]
    fn what_is_no_image_is_told_apart() {
        let blob = |media_type: &str, size: u64| {
            let digest = format!("sha256:{}", "0".repeat(64));
            descriptors(serde_json::json!([{"mediaType": media_type, "digest": digest, "size": size}]))
                .remove(0)
        };
        let limits = Limits { bytes_max: 100, ..Limits::default() };
        let config = blob(CONFIGS[0], 1);
        assert!(blobs_of(&config, &[blob("", 60), blob("", 40)], &limits).is_ok());
        assert!(blobs_of(&config, &[blob("", 60), blob("", 41)], &limits).is_err());
        assert!(blobs_of(&config, &[blob("", u64::MAX), blob("", u64::MAX)], &limits).is_err());
        let chart = blobs_of(&blob("application/vnd.cncf.helm.config.v1+json", 1), &[], &limits).unwrap_err();
        assert!(chart.message.contains("helm"), "{chart}");
        assert!(blobs_of(&config, &vec![blob("", 0); 10_000], &limits).is_err());
    }
}
