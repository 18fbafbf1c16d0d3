//! What is kept of an environment, and what it means.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

use api::{
    Result,
    environment::{EnvironmentPart, EnvironmentRequest},
    image::{ImageConfig, ImageInfo, LayerKind},
};
use serde::{Deserialize, Serialize};

use crate::catalogue::{Images, Key, resolve};

/// On disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    pub version: String,
    /// Lowest first; the first is the base.
    pub parts: Vec<Part>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    workdir: Option<String>,
    pub created_ms: u64,
}

/// Exact where it holds an image, else followed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    pub kind: LayerKind,
    pub reference: String,
    pub follow: bool,
    /// As it was when the environment was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<ImageInfo>,
}

/// A composition with every part looked up.
pub struct Meaning {
    pub digest: String,
    /// Lowest first, each once.
    pub layers: Vec<String>,
    pub config: ImageConfig,
    pub files: u64,
    pub size_bytes: u64,
    /// Digests of the parts' images.
    pub parts: Vec<String>,
}

impl Record {
    /// Errors: `not_found`, `invalid_argument`.
    pub fn new(request: &EnvironmentRequest, images: &Images) -> Result<Self> {
        let part = |(kind, reference): (LayerKind, &str)| {
            let follow = request.follow.contains(&kind);
            let image = find(images, reference, kind)?;
            let image = (!follow).then(|| image.as_ref().clone());
            Ok(Part { kind, reference: reference.to_owned(), follow, image })
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            name: request.name.clone(),
            version: request.version.clone(),
            parts: request.parts().map(part).collect::<Result<_>>()?,
            env: request.env.clone(),
            user: request.user.clone(),
            workdir: request.workdir.clone(),
            created_ms: now.as_millis() as u64,
        })
    }

    pub fn key(&self) -> Key {
        (self.name.clone(), self.version.clone())
    }

    pub fn is_exact(&self) -> bool {
        self.parts.iter().all(|part| !part.follow)
    }

    /// Whether it means the same, now and later.
    pub fn is_like(&self, other: &Self) -> bool {
        let rest = |record: &Self| (record.env.clone(), record.user.clone(), record.workdir.clone());
        rest(self) == rest(other)
            && self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(|(one, two)| one.is_like(two))
    }

    /// Of the exact parts.
    pub fn layers_kept(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().filter_map(|part| part.image.as_ref()).flat_map(|image| &image.layers)
    }

    /// `parts`: the image of each.
    pub fn compose(
        &self,
        parts: &[Arc<ImageInfo>],
        digest: impl Fn(&[String], &ImageConfig) -> Result<String>,
    ) -> Result<Meaning> {
        let mut seen = HashSet::new();
        // Of equal layers the topmost, which hides the others in full; overlayfs takes no layer twice.
        let all = parts.iter().flat_map(|image| &image.layers).rev();
        let mut layers: Vec<String> = all.filter(|layer| seen.insert(*layer)).cloned().collect();
        layers.reverse();
        let mut config = parts.first().map(|base| base.config.clone()).unwrap_or_default();
        config.env.extend(self.env.clone());
        config.user = self.user.clone().or(config.user);
        config.workdir = self.workdir.clone().or(config.workdir);
        Ok(Meaning {
            digest: digest(&layers, &config)?,
            layers,
            config,
            files: parts.iter().map(|image| image.files).sum(),
            size_bytes: parts.iter().map(|image| image.size_bytes).sum(),
            parts: parts.iter().map(|image| image.digest.clone()).collect(),
        })
    }
}

impl Part {
    fn is_like(&self, other: &Self) -> bool {
        let exact = |part: &Self| part.image.as_ref().map(|image| image.digest.clone());
        let followed = |part: &Self| part.follow.then(|| resolve::key(&part.reference));
        self.kind == other.kind && exact(self) == exact(other) && followed(self) == followed(other)
    }

    /// What it means. Errors: `not_found`, `invalid_argument`.
    pub fn image(&self, images: &Images) -> Result<Arc<ImageInfo>> {
        match &self.image {
            Some(image) => Ok(Arc::new(image.clone())),
            None => find(images, &self.reference, self.kind),
        }
    }

    pub fn told(&self, images: &Images) -> EnvironmentPart {
        EnvironmentPart {
            kind: self.kind,
            reference: self.reference.clone(),
            follow: self.follow,
            digest: self.image(images).ok().map(|image| image.digest.clone()),
        }
    }
}

fn find(images: &Images, reference: &str, kind: LayerKind) -> Result<Arc<ImageInfo>> {
    let image = resolve::find_image(images, reference)?;
    resolve::check_kind(&image.info, reference, kind)?;
    Ok(Arc::new(image.info.clone()))
}
