//! From a spec and its resolved layers to a runtime's plan.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use api::{
    Error, Result, SandboxId,
    image::{ImageConfig, LayerKind},
    limit,
    spec::SandboxSpec,
};
use runtime::{LayerFiles, Plan};

use crate::{
    layers::{Layers, Resolved},
    sandbox::Sandbox,
};

/// A spec with every reference looked up: what all sandboxes of one request share.
#[derive(Debug, Clone)]
pub(crate) struct Composition {
    pub(crate) layers: Vec<LayerFiles>,
    /// Digests of the images, and of the environment and its images, each once.
    pub(crate) images: Vec<String>,
    /// Of the base image.
    pub(crate) config: ImageConfig,
    /// What the writable parts start as copies of.
    disk: Option<PathBuf>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    workdir: Option<String>,
}

/// Looks every reference up. Errors: `not_found`, `invalid_argument`.
pub(crate) fn resolve(layers: &dyn Layers, spec: &SandboxSpec) -> Result<Composition> {
    let base = layers.resolve(&spec.image, LayerKind::Base)?;
    let workspaces = spec.workspaces.iter().map(|w| layers.resolve(w, LayerKind::Workspace));
    let toolkits = spec.toolkits.iter().map(|t| layers.resolve(t, LayerKind::Toolkit));
    let above: Vec<Resolved> = workspaces.chain(toolkits).collect::<Result<_>>()?;
    plan_composition(base, above, spec)
}

fn plan_composition(base: Resolved, above: Vec<Resolved>, spec: &SandboxSpec) -> Result<Composition> {
    let config = base.info.config.clone();
    let mut images = Vec::new();
    let mut files = Vec::new();
    for resolved in std::iter::once(base).chain(above) {
        for digest in std::iter::once(resolved.info.digest).chain(resolved.parts) {
            if !images.contains(&digest) {
                images.push(digest);
            }
        }
        files.extend(resolved.layers);
    }
    let files = each_once(files);
    if files.len() > limit::LAYERS_MAX {
        return Err(Error::invalid(format!(
            "layers: the images bring {} file system layers, at most {}",
            files.len(),
            limit::LAYERS_MAX
        )));
    }
    Ok(compose(files, images, config, spec, None))
}

fn compose(
    layers: Vec<LayerFiles>,
    images: Vec<String>,
    config: ImageConfig,
    spec: &SandboxSpec,
    disk: Option<PathBuf>,
) -> Composition {
    let mut env = config.env.clone();
    env.extend(spec.env.clone());
    let user = spec.user.clone().or(config.user.clone()).filter(|u| !u.is_empty());
    let workdir = spec.workdir.clone().or(config.workdir.clone()).filter(|w| !w.is_empty());
    Composition { layers, images, config, disk, env, user, workdir }
}

/// What `of` was made of, for `spec`, with a disk that starts as a copy of `disk`. Names may mean other images by now,
/// so none is looked up.
pub(crate) async fn again(
    layers: &Arc<dyn Layers>,
    of: &Sandbox,
    spec: &SandboxSpec,
    disk: Option<PathBuf>,
) -> Result<Composition> {
    let (layers, digests) = (layers.clone(), of.layers().to_vec());
    let files = tokio::task::spawn_blocking(move || layers.files(&digests)).await;
    let files = files.map_err(|_| Error::internal("the catalogue failed"))??;
    Ok(compose(files, of.images().to_vec(), of.image_config().clone(), spec, disk))
}

/// overlayfs takes a layer once. All that a lower one of two the same shows, the upper shows too, so that one stays.
fn each_once(mut files: Vec<LayerFiles>) -> Vec<LayerFiles> {
    let mut seen = HashSet::new();
    files.reverse();
    files.retain(|layer| seen.insert(layer.digest.clone()));
    files.reverse();
    files
}

impl Composition {
    pub(crate) fn digests(&self) -> Vec<String> {
        self.layers.iter().map(|layer| layer.digest.clone()).collect()
    }
}

/// The plan of one sandbox.
pub(crate) fn plan_sandbox(id: &SandboxId, spec: &SandboxSpec, composition: &Composition) -> Plan {
    Plan {
        id: id.clone(),
        spec: spec.clone(),
        layers: composition.layers.clone(),
        env: composition.env.clone(),
        user: composition.user.clone(),
        workdir: composition.workdir.clone(),
        hostname: spec.hostname.clone().unwrap_or_else(|| id.to_string()),
        disk: composition.disk.clone(),
    }
}

#[cfg(test)]
mod tests {
    use api::image::ImageInfo;

    use super::*;

    fn resolved(name: &str, kind: LayerKind, count: usize) -> Resolved {
        let layers: Vec<LayerFiles> = (0..count)
            .map(|n| LayerFiles { digest: format!("{name}{n}"), meta: "/m".into(), blob: None })
            .collect();
        let config = ImageConfig {
            env: [("A".to_owned(), "image".to_owned()), ("B".to_owned(), "image".to_owned())].into(),
            workdir: Some("/image".into()),
            user: Some(String::new()),
            ..ImageConfig::default()
        };
        let info = ImageInfo {
            name: name.into(),
            version: "1".into(),
            kind,
            digest: format!("d-{name}"),
            layers: layers.iter().map(|l| l.digest.clone()).collect(),
            config,
            files: 0,
            size_bytes: 0,
            created_ms: 0,
            built_on: None,
            in_use: 0,
            usage: Default::default(),
        };
        Resolved { info, layers, parts: Vec::new() }
    }

    #[test]
    fn the_spec_wins_over_the_image_and_order_is_kept() {
        let mut spec = SandboxSpec::new("base");
        spec.env = [("A".to_owned(), "spec".to_owned())].into();
        let above = vec![resolved("w", LayerKind::Workspace, 1), resolved("w", LayerKind::Workspace, 1)];
        let composition = plan_composition(resolved("b", LayerKind::Base, 2), above, &spec).unwrap();
        let id = SandboxId::new(&"e1".parse().unwrap());
        let plan = plan_sandbox(&id, &spec, &composition);
        let digests: Vec<_> = plan.layers.iter().map(|l| l.digest.as_str()).collect();
        assert_eq!(digests, ["b0", "b1", "w0"]);
        assert_eq!(composition.images, ["d-b", "d-w"]);
        assert_eq!((plan.env["A"].as_str(), plan.env["B"].as_str()), ("spec", "image"));
        assert_eq!(
            (plan.user, plan.workdir.as_deref(), plan.hostname),
            (None, Some("/image"), id.to_string())
        );
    }

    #[test]
    fn a_layer_that_comes_twice_is_there_once_where_it_is_seen() {
        let layer = |digest: &str| LayerFiles { digest: digest.into(), meta: "/m".into(), blob: None };
        let once = each_once(["a", "b", "a", "c", "b"].map(layer).into());
        assert_eq!(once.iter().map(|l| l.digest.as_str()).collect::<Vec<_>>(), ["a", "c", "b"]);
    }

    #[test]
    fn too_many_layers_are_refused() {
        let base = resolved("b", LayerKind::Base, limit::LAYERS_MAX + 1);
        assert!(plan_composition(base, Vec::new(), &SandboxSpec::new("b")).is_err());
    }
}
