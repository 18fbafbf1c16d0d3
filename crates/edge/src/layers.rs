//! What the edge needs of a catalogue of images. Crate `image` has the real one; tests have one in memory.

use std::io::Read;

use api::{
    Code, Error, Result,
    image::{ImageInfo, ImportQuery, LayerKind},
    pull::{PullProgress, PullRequest},
};
use image::Catalogue;
use runtime::LayerFiles;
use tokio::sync::watch;

/// A reference, looked up.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub info: ImageInfo,
    /// Lowest first.
    pub layers: Vec<LayerFiles>,
}

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
    /// Removes layers that nothing names and nobody uses. Returns how many.
    fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize>;
}

impl Layers for Catalogue {
    fn resolve(&self, reference: &str, kind: LayerKind) -> Result<Resolved> {
        let found = Catalogue::resolve(self, reference, Some(kind))?;
        let files = found.layers.iter().map(|layer| LayerFiles {
            digest: layer.digest.clone(),
            meta: layer.meta.clone(),
            blob: layer.blob.clone(),
        });
        Ok(Resolved { layers: files.collect(), info: found.info.clone() })
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
    fn sweep(&self, in_use: &dyn Fn(&str) -> bool) -> Result<usize> {
        Catalogue::sweep(self, in_use)
    }
}
