//! The catalogue, beside a runtime that has its layers mounted: a layer that goes is forgotten there too, or its mount
//! would hold the disk space of a file that nobody can see.

use std::{
    collections::HashSet,
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::{
    Code, Error, Result,
    environment::{EnvironmentInfo, EnvironmentRequest},
    image::{ExportQuery, ImageInfo, ImportQuery, LayerKind, MergeRequest, TagRequest},
    pull::{PullProgress, PullRequest},
    snapshot::{PackReport, PackRequest},
};
use edge::{Environments, Export, Layers, Resolved};
use image::{Catalogue, Under};
use runtime::{LayerFiles, container::Container};
use tokio::sync::watch;

pub(super) struct Mounted {
    catalogue: Arc<Catalogue>,
    shared: Option<super::store::Shared>,
    /// `<hex>/` for each layer.
    layers: PathBuf,
    container: Arc<Container>,
}

impl Mounted {
    /// `directory`: the catalogue's.
    pub(super) fn new(
        catalogue: Arc<Catalogue>,
        shared: Option<super::store::Shared>,
        directory: &Path,
        container: Arc<Container>,
    ) -> Self {
        Self { catalogue, shared, layers: directory.join("layers"), container }
    }

    fn there(&self) -> HashSet<String> {
        let entries = fs::read_dir(&self.layers).into_iter().flatten().flatten();
        entries.map(|entry| format!("blake3:{}", entry.file_name().to_string_lossy())).collect()
    }

    fn forget(&self, before: HashSet<String>) {
        for gone in before.difference(&self.there()) {
            if let Err(error) = self.container.forget_layer(gone) {
                // Its space comes back when forge ends.
                tracing::warn!(%error, layer = %gone, "a removed layer stays mounted");
            }
        }
    }
}

impl Layers for Mounted {
    fn resolve(&self, reference: &str, kind: LayerKind) -> Result<Resolved> {
        let found = Layers::resolve(self.catalogue.as_ref(), reference, kind)?;
        let is_here = |layer: &LayerFiles| layer.blob.as_ref().is_none_or(|b| b.starts_with(&self.layers));
        if self.shared.is_none() && !found.layers.iter().all(is_here) {
            let message = format!("`{reference}`: its data is in a store: start the node with --store URL");
            return Err(Error::new(Code::Unsupported, message));
        }
        Ok(found)
    }

    fn import(&self, query: &ImportQuery, body: &mut dyn Read) -> Result<ImageInfo> {
        Layers::import(self.catalogue.as_ref(), query, body)
    }

    fn pull(&self, request: &PullRequest, progress: &watch::Sender<PullProgress>) -> Result<ImageInfo> {
        Layers::pull(self.catalogue.as_ref(), request, progress)
    }

    fn list(&self) -> Result<Vec<ImageInfo>> {
        Layers::list(self.catalogue.as_ref())
    }

    fn inspect(&self, reference: &str) -> Result<ImageInfo> {
        Layers::inspect(self.catalogue.as_ref(), reference)
    }

    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        let before = self.there();
        let removed = Layers::remove(self.catalogue.as_ref(), reference, in_use);
        self.forget(before);
        removed
    }

    fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport> {
        Layers::pack(self.catalogue.as_ref(), request, upper, under)
    }

    fn files(&self, digests: &[String]) -> Result<Vec<LayerFiles>> {
        Layers::files(self.catalogue.as_ref(), digests)
    }

    fn merge(&self, reference: &str, request: &MergeRequest) -> Result<ImageInfo> {
        Layers::merge(self.catalogue.as_ref(), reference, request)
    }

    fn tag(&self, reference: &str, request: &TagRequest) -> Result<ImageInfo> {
        Layers::tag(self.catalogue.as_ref(), reference, request)
    }

    fn export(&self, reference: &str, query: ExportQuery) -> Result<Export> {
        Layers::export(self.catalogue.as_ref(), reference, query)
    }

    fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize> {
        let before = self.there();
        let swept = Layers::sweep(self.catalogue.as_ref(), in_use);
        self.forget(before);
        swept
    }

    fn environments(&self) -> Option<&dyn Environments> {
        Some(self)
    }

    fn shared(&self) -> Option<&dyn edge::Shared> {
        self.shared.as_ref().map(|shared| shared as &dyn edge::Shared)
    }
}

impl Environments for Mounted {
    fn create(&self, request: &EnvironmentRequest) -> Result<EnvironmentInfo> {
        self.catalogue.environment_create(request)
    }

    fn list(&self) -> Vec<EnvironmentInfo> {
        self.catalogue.environment_list()
    }

    fn inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        self.catalogue.environment_inspect(reference)
    }

    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        let before = self.there();
        let removed = self.catalogue.environment_remove(reference, in_use);
        self.forget(before);
        removed
    }
}
