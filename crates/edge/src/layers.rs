//! What the edge needs of a catalogue of images. Crate `image` has the real one; tests have one in memory.

use std::{
    io::{Read, Write},
    path::Path,
};

use api::{
    Code, Error, Result,
    environment::{EnvironmentInfo, EnvironmentRequest},
    image::{ExportQuery, ImageInfo, ImportQuery, LayerKind, MergeRequest, TagRequest},
    pull::{PullProgress, PullRequest},
    snapshot::{PackReport, PackRequest},
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};
use image::{Catalogue, Under};
use runtime::LayerFiles;
use tokio::sync::watch;

/// A reference, looked up.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub info: ImageInfo,
    /// Lowest first.
    pub layers: Vec<LayerFiles>,
    /// Of an environment, the digests of the images it is composed of.
    pub parts: Vec<String>,
}

/// An export that may begin: it blocks, and ends with an error when its output does not want more.
pub type Export = Box<dyn FnOnce(&mut dyn Write) -> Result<()> + Send>;

/// A catalogue. `resolve` answers from memory; the others may block on the disk, and are asked where that is allowed.
pub trait Layers: Send + Sync {
    /// Errors: `not_found`, `invalid_argument` where the image is of another kind.
    fn resolve(&self, reference: &str, kind: LayerKind) -> Result<Resolved>;
    fn import(&self, query: &ImportQuery, body: &mut dyn Read) -> Result<ImageInfo>;
    /// Ends early where nobody listens to `progress` any more.
    fn pull(&self, _: &PullRequest, _progress: &watch::Sender<PullProgress>) -> Result<ImageInfo> {
        Err(Error::new(Code::Unsupported, "this catalogue pulls no images"))
    }
    fn list(&self) -> Result<Vec<ImageInfo>>;
    /// Errors: `not_found`.
    fn inspect(&self, reference: &str) -> Result<ImageInfo>;
    /// `in_use` tells whether a sandbox lives on the layer of a digest. Errors: `not_found`, `conflict`.
    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()>;
    /// Makes a layer of an overlay's upper directory, and an image of it. See [`Catalogue::pack`].
    fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport>;
    /// Where layers are, by digest. Errors: `not_found`.
    fn files(&self, digests: &[String]) -> Result<Vec<LayerFiles>>;
    /// Errors: `not_found`, `already_exists`, `invalid_argument` where there is nothing to merge.
    fn merge(&self, reference: &str, request: &MergeRequest) -> Result<ImageInfo>;
    /// Another name for an image's layers. Errors: `not_found`.
    fn tag(&self, reference: &str, request: &TagRequest) -> Result<ImageInfo>;
    /// Opens the image; what is given back writes the archive. Errors: `not_found`, `invalid_argument`.
    fn export(&self, reference: &str, query: ExportQuery) -> Result<Export>;
    /// Removes layers that nothing names and nobody uses. Returns how many.
    fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize>;
    /// The compositions that have names, where it keeps any.
    fn environments(&self) -> Option<&dyn Environments> {
        None
    }
    /// The store that nodes share, where there is one.
    fn shared(&self) -> Option<&dyn Shared> {
        None
    }
}

/// Named compositions. All of it may block on the disk.
pub trait Environments: Send + Sync {
    /// Errors: `not_found`, `invalid_argument`, `already_exists`.
    fn create(&self, request: &EnvironmentRequest) -> Result<EnvironmentInfo>;
    fn list(&self) -> Vec<EnvironmentInfo>;
    /// Errors: `not_found`.
    fn inspect(&self, reference: &str) -> Result<EnvironmentInfo>;
    /// `in_use`: as of [`Layers::remove`]. Errors: `not_found`, `conflict`.
    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()>;
}

/// A store that nodes share. All of it blocks.
pub trait Shared: Send + Sync {
    /// Brings an image of the store into the catalogue. Errors: `not_found`, `no_capacity`.
    fn fetch(&self, reference: &str) -> Result<()>;
    /// Sends an image of the catalogue to the store. Errors: `not_found`, `no_capacity`.
    fn publish(&self, reference: &str) -> Result<PublishReport>;
    /// Removes a name from the store. Errors: `not_found`, `conflict`, `no_capacity`.
    fn remove(&self, reference: &str) -> Result<()>;
    /// Removes from the store what no image needs. Errors: `no_capacity`, `internal`.
    fn gc(&self, request: GcRequest) -> Result<GcReport>;
    /// What the store has.
    fn list(&self) -> Result<Vec<ImageInfo>>;
    /// Where the bytes of an image are. Errors: `not_found`.
    fn layers(&self, reference: &str) -> Result<Vec<LayerStatus>>;
    /// Whether each new image is to be published.
    fn publishes_all(&self) -> bool;
}

fn of_image(layer: image::LayerFiles) -> LayerFiles {
    LayerFiles { digest: layer.digest, meta: layer.meta, blob: layer.blob }
}

impl Layers for Catalogue {
    fn resolve(&self, reference: &str, kind: LayerKind) -> Result<Resolved> {
        let found = Catalogue::resolve(self, reference, Some(kind))?;
        Ok(Resolved {
            layers: found.layers.iter().cloned().map(of_image).collect(),
            info: found.info.clone(),
            parts: found.parts.clone(),
        })
    }
    fn import(&self, query: &ImportQuery, body: &mut dyn Read) -> Result<ImageInfo> {
        self.import_reader(query, body)
    }
    fn pull(&self, request: &PullRequest, progress: &watch::Sender<PullProgress>) -> Result<ImageInfo> {
        Catalogue::pull(self, request, progress)
    }
    fn list(&self) -> Result<Vec<ImageInfo>> {
        Ok(Catalogue::list(self))
    }
    fn inspect(&self, reference: &str) -> Result<ImageInfo> {
        Catalogue::inspect(self, reference)
    }
    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        Catalogue::remove(self, reference, in_use)
    }
    fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport> {
        Catalogue::pack(self, request, upper, under)
    }
    fn files(&self, digests: &[String]) -> Result<Vec<LayerFiles>> {
        Ok(self.layer_files(digests)?.into_iter().map(of_image).collect())
    }
    fn merge(&self, reference: &str, request: &MergeRequest) -> Result<ImageInfo> {
        Catalogue::merge(self, reference, request)
    }
    fn tag(&self, reference: &str, request: &TagRequest) -> Result<ImageInfo> {
        Catalogue::tag(self, reference, request)
    }
    fn export(&self, reference: &str, query: ExportQuery) -> Result<Export> {
        let export = Catalogue::export(self, reference, query.format)?;
        Ok(Box::new(move |out| Ok(export.write(out)?)))
    }
    fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize> {
        Catalogue::sweep(self, in_use)
    }
    fn environments(&self) -> Option<&dyn Environments> {
        Some(self)
    }
}

impl Environments for Catalogue {
    fn create(&self, request: &EnvironmentRequest) -> Result<EnvironmentInfo> {
        self.environment_create(request)
    }
    fn list(&self) -> Vec<EnvironmentInfo> {
        self.environment_list()
    }
    fn inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        self.environment_inspect(reference)
    }
    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        self.environment_remove(reference, in_use)
    }
}
