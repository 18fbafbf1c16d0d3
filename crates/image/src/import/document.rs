//! The JSON of images, as far as we read it: OCI index, manifest and config; docker's `manifest.json`.
//!
//! Invariant: a digest is `sha256:` and 64 lower-case hex digits, or the image is refused.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    image::{ImageConfig, is_port},
    limit,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::error::{Error, Result, show};

/// An OCI index has `manifests`, an OCI manifest has `config` and `layers`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexOrManifest {
    /// 2 for all that is read here; docker's first schema had 1.
    pub schema_version: Option<u32>,
    pub manifests: Option<Vec<Descriptor>>,
    pub config: Option<Descriptor>,
    pub layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: Option<u64>,
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    pub variant: Option<String>,
}

impl Platform {
    pub fn of_this_node() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture: architecture.into(), os: "linux".into(), variant: None }
    }

    /// Whether what is made for `self` is what `wanted` asks for; without a variant any will do.
    pub fn fits(&self, wanted: &Self) -> bool {
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || wanted.variant == self.variant)
    }
}

impl Descriptor {
    /// The hex part of the digest.
    pub fn hex(&self) -> Result<&str> {
        hex_of(&self.digest)
    }
    /// Whether it is about another manifest instead of an image.
    pub fn is_attestation(&self) -> bool {
        let about = self.annotations.as_ref().is_some_and(|a| a.contains_key("vnd.docker.reference.type"));
        about || self.platform.as_ref().is_some_and(|p| p.os == "unknown")
    }
    pub fn is_for(&self, wanted: &Platform) -> bool {
        self.platform.as_ref().is_some_and(|p| p.fits(wanted))
    }
}

/// The hex part of `sha256:<hex>`.
pub fn hex_of(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| is_hash(hex));
    hex.ok_or_else(|| Error::refused(format!("{}: not a sha256 digest", show(digest.as_bytes()))))
}

pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// One image of docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DockerManifest {
    pub config: String,
    pub layers: Vec<String>,
}

/// The config blob.
#[derive(Deserialize, Default)]
pub struct ConfigDocument {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    variant: Option<String>,
    config: Option<RunConfig>,
    rootfs: Option<RootFs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RunConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl RunConfig {
    /// Those that fit: what an image says of itself is no reason to refuse it.
    fn labels(&self) -> BTreeMap<String, String> {
        let mut bytes = 0;
        let labels = self.labels.iter().flatten().filter(|(key, _)| !key.is_empty());
        let fitting = labels.take_while(|(key, value)| {
            bytes += key.len() + value.len();
            bytes <= limit::IMAGE_LABELS_BYTES_MAX
        });
        fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// As `8080/tcp`, however they were written; what is no port is left out.
    fn ports(&self) -> BTreeSet<String> {
        let written = self.exposed_ports.iter().flatten().map(|(port, _)| port);
        let whole = written.map(|port| if port.contains('/') { port.clone() } else { format!("{port}/tcp") });
        whole.filter(|port| is_port(port)).take(limit::EXPOSED_PORTS_MAX).collect()
    }
}

impl ConfigDocument {
    /// What it says it runs on; None where it does not say.
    pub fn platform(&self) -> Option<Platform> {
        let Self { architecture, os, variant, .. } = self;
        let platform =
            Platform { architecture: architecture.clone(), os: os.clone(), variant: variant.clone() };
        (!platform.architecture.is_empty() && !platform.os.is_empty()).then_some(platform)
    }
    /// What we keep of it.
    pub fn image_config(&self) -> ImageConfig {
        let Some(run) = &self.config else { return ImageConfig::default() };
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let env = run.env.iter().flatten().filter_map(|line| line.split_once('='));
        ImageConfig {
            env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            workdir: filled(&run.working_dir),
            user: filled(&run.user),
            labels: run.labels(),
            exposed_ports: run.ports(),
        }
    }
    /// The hashes of the decompressed layers; empty where the image does not tell.
    pub fn diff_ids(&self) -> Result<Vec<String>> {
        let ids = self.rootfs.iter().flat_map(|rootfs| &rootfs.diff_ids);
        ids.map(|id| hex_of(id).map(str::to_owned)).collect()
    }
}

pub fn parse<T: DeserializeOwned>(name: &[u8], bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::refused(format!("{}: {e}", show(name))))
}
