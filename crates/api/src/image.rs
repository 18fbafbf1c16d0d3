//! Layers as the catalogue lists them.

mod export;
mod merge;
mod tag;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use export::{ExportFormat, ExportQuery};
pub use merge::{MERGE_THRESHOLD_BYTES, MergeRequest};
pub use tag::TagRequest;

use crate::{Error, Result, limit, spec};

/// The name that steps of builds have among the images: each version is a step. Nothing but its being said here and
/// left out of lists for people sets it apart.
pub const BUILD_CACHE: &str = "build-cache";

/// The place of a layer in a composition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    Base,
    Workspace,
    Toolkit,
}

/// What an import reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportFormat {
    /// Look at the bytes: `oci-layout` or `manifest.json` inside a tar is an image, else a plain tar.
    #[default]
    Auto,
    /// A tar of a root file system, plain, gzip or zstd.
    Tar,
    /// `docker save`, or an OCI layout in a tar.
    OciArchive,
}

/// `POST /v1/images/import`: the body is the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportQuery {
    pub name: String,
    #[serde(default = "default_version")]
    pub version: String,
    pub kind: LayerKind,
    #[serde(default)]
    pub format: ImportFormat,
    /// Put the whole tree under this directory of the sandbox, e.g. `/home/user/project`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Give every file to `uid:gid`; absent, the archive's owners stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// For a base from a plain tar: the image config's user, working directory and `KEY=value` environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `KEY=value` lines, separated by newlines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
}

fn default_version() -> String {
    "latest".into()
}

impl ImportQuery {
    pub fn new(name: impl Into<String>, kind: LayerKind) -> Self {
        Self {
            name: name.into(),
            version: default_version(),
            kind,
            format: ImportFormat::Auto,
            prefix: None,
            owner: None,
            user: None,
            workdir: None,
            env: None,
        }
    }
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        spec::check_name("version", &self.version)?;
        if let Some(prefix) = &self.prefix {
            spec::check_absolute("prefix", prefix)?;
            if prefix.split('/').any(|part| part == "..") {
                return Err(Error::invalid("prefix: `..` has no place in it"));
            }
        }
        if let Some(owner) = &self.owner {
            let ok = owner
                .split_once(':')
                .is_some_and(|(u, g)| u.parse::<u16>().is_ok() && g.parse::<u16>().is_ok());
            if !ok {
                return Err(Error::invalid("owner: expected `uid:gid`, each 0 to 65535"));
            }
        }
        if let Some(workdir) = &self.workdir {
            spec::check_absolute("workdir", workdir)?;
        }
        Ok(())
    }
}

/// What the image says about how to run commands in it. ENTRYPOINT and CMD are ignored on purpose: a sandbox runs
/// what it is asked to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageConfig {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub workdir: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    /// For people and registries: nothing here acts on them. Left out where empty, here and below, so that images from
    /// before they were kept have the digests that they had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `8080/tcp`: what the software inside is said to listen on. A port is reached whether or not it is here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exposed_ports: BTreeSet<String>,
}

impl ImageConfig {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_env(&self.env)?;
        if let Some(workdir) = &self.workdir {
            spec::check_absolute("config.workdir", workdir)?;
        }
        if let Some(user) = &self.user {
            spec::check_text("config.user", user)?;
        }
        let bytes: usize = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > limit::IMAGE_LABELS_BYTES_MAX || self.labels.contains_key("") {
            return Err(Error::invalid(format!(
                "config.labels: expected names that are not empty, and at most {} bytes in all",
                limit::IMAGE_LABELS_BYTES_MAX
            )));
        }
        if self.exposed_ports.len() > limit::EXPOSED_PORTS_MAX {
            return Err(Error::invalid(format!(
                "config.exposed_ports: more than {} ports",
                limit::EXPOSED_PORTS_MAX
            )));
        }
        match self.exposed_ports.iter().find(|port| !is_port(port)) {
            Some(port) => Err(Error::invalid(format!(
                "config.exposed_ports: `{port}` is not 1 to 65535 and `/tcp`, `/udp` or `/sctp`"
            ))),
            None => Ok(()),
        }
    }
}

/// Whether `text` is a port and a protocol, in the one way to write it.
pub fn is_port(text: &str) -> bool {
    text.split_once('/').is_some_and(|(number, protocol)| {
        let number = number.parse().ok().filter(|port: &u16| *port > 0 && port.to_string() == number);
        number.is_some() && ["tcp", "udp", "sctp"].contains(&protocol)
    })
}

/// A named, versioned stack of EROFS layers (one, or one for each OCI layer). `digest` names the stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageInfo {
    pub name: String,
    pub version: String,
    pub kind: LayerKind,
    /// `blake3:<64 hex digits>`
    pub digest: String,
    /// Digests of the EROFS layers, lowest first.
    pub layers: Vec<String>,
    pub config: ImageConfig,
    pub files: u64,
    pub size_bytes: u64,
    pub created_ms: u64,
    /// Of a pack or a step of a build: the digest of the image that it was made on, which may be gone by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_on: Option<String>,
    /// Sandboxes that live on it now.
    #[serde(default)]
    pub in_use: u32,
    #[serde(default)]
    pub usage: Usage,
}

/// What a node has counted of an image, or of an environment. Up to some seconds are lost where the node crashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Sandboxes created of it, ever.
    pub sandboxes: u64,
    /// When the last one was, in milliseconds since the Unix epoch; 0 where none was.
    pub last_ms: u64,
}
