//! The catalogue: layers by digest and images by name, on disk, with all of it in memory for a fast answer.
//!
//! ```text
//! <dir>/layers/<hex>/{meta.erofs,data.blob,manifest.json}   a layer; never changes
//! <dir>/images/<name>/<version>.json                        an image; replaced as a whole
//! <dir>/environments/<name>/<version>.json                  an environment; never changes
//! <dir>/known/<key>-<hex>                       which layer of an image was made into which of ours
//! <dir>/blobs/<hex>                             fetched whole by a pull that goes on, or that was killed
//! <dir>/lock                                            held while the catalogue is open
//! <dir>/tmp/<uuid>/                                         what is being made or removed; swept at open
//! ```
//! Invariants: what is under `layers` and `images` is complete and synced, for it got there by a rename; an image
//! names only layers that are there; names appear and vanish under one lock, so no layer is removed while an import
//! is about to name it; `tmp` is swept only by who has the directory to itself.

mod adopt;
mod environment;
mod export;
mod known;
mod merge;
mod pack;
mod publish;
mod pull;
mod remove;
mod resolve;
mod store;
mod tag;

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, RwLock},
};

use api::{
    Result,
    image::{ImageInfo, ImportQuery},
};

use crate::{Limits, error::Error, import};
pub use adopt::Arrived;
pub use pack::Under;
use store::Lock;
pub use store::{Manifest, Scratch};

/// One EROFS layer on the node's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFiles {
    /// `blake3:<hex>`
    pub digest: String,
    /// The EROFS image with the metadata.
    pub meta: PathBuf,
    /// Its data device; None where no file has any bytes.
    pub blob: Option<PathBuf>,
}

/// An image and where its layers are, lowest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    pub info: ImageInfo,
    pub layers: Vec<LayerFiles>,
    /// Of an environment, the digests of the images it is composed of.
    pub parts: Vec<String>,
}

/// Name and version.
type Key = (String, String);
type Images = BTreeMap<Key, Arc<Resolved>>;

/// See the module.
pub struct Catalogue {
    dir: PathBuf,
    /// `<hex>/data.blob` below it, for layers whose blobs are not here.
    remote: PathBuf,
    limits: Limits,
    images: RwLock<Images>,
    environments: RwLock<environment::Environments>,
    /// Held while names appear or vanish on disk.
    changing: Mutex<()>,
    /// Layers' digests by what they were made of, both in hex.
    known: Mutex<BTreeMap<String, String>>,
    pins: known::Pins,
    pulls: pull::Pulls,
    _lock: Option<Lock>,
}

impl Catalogue {
    /// Opens or makes the catalogue under `dir`, sweeping what a dead process left.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_with(dir, Limits::default())
    }

    /// The same, with other bounds on imports.
    pub fn open_with(dir: &Path, limits: Limits) -> Result<Self> {
        Self::open_at(dir, &dir.join("remote"), limits)
    }

    /// The same, where blobs of layers that are not on this node's disk are shown under `remote`.
    pub fn with_remote(dir: &Path, remote: &Path) -> Result<Self> {
        Self::open_at(dir, remote, Limits::default())
    }

    fn open_at(dir: &Path, remote: &Path, limits: Limits) -> Result<Self> {
        let (images, lock) = store::open(dir, remote)?;
        let environments = environment::load(dir).map_err(disk("read the environments"))?;
        let known = Mutex::new(known::load(dir).map_err(disk("read what layers were made of"))?);
        Ok(Self {
            dir: dir.to_owned(),
            remote: remote.to_owned(),
            limits,
            images: RwLock::new(images),
            environments: RwLock::new(environments),
            changing: Mutex::new(()),
            known,
            pins: known::Pins::default(),
            pulls: pull::Pulls::default(),
            _lock: lock,
        })
    }

    fn load_layer(&self, digest: &str) -> std::io::Result<LayerFiles> {
        store::load_layer(&self.dir, &self.remote, digest)
    }

    /// Imports the tree under `source` as one layer. Blocks.
    pub fn import_dir(&self, query: &ImportQuery, source: &Path) -> Result<ImageInfo> {
        query.validate()?;
        let scratch = Scratch::create(&self.dir)?;
        let imported = import::import_directory(query, &self.limits, source, scratch.path())?;
        self.publish(query, imported, &scratch)
    }

    /// Imports an archive. Blocks as long as `source` does: call it where blocking is allowed.
    pub fn import_reader(&self, query: &ImportQuery, source: impl Read) -> Result<ImageInfo> {
        query.validate()?;
        let scratch = Scratch::create(&self.dir)?;
        let imported = import::import_archive(query, &self.limits, source, scratch.path())?;
        self.publish(query, imported, &scratch)
    }

    /// All images, by name and version. `in_use` is 0: the edge knows better.
    pub fn list(&self) -> Vec<ImageInfo> {
        self.images().values().map(|image| image.info.clone()).collect()
    }

    /// Where published layers are. Errors: `not_found`.
    pub fn layer_files(&self, digests: &[String]) -> Result<Vec<LayerFiles>> {
        let files = digests.iter().map(|digest| self.load_layer(digest));
        files.collect::<std::io::Result<_>>().map_err(|cause| {
            tracing::error!(%cause, "a layer that is lived on cannot be read");
            api::Error::not_found("a layer of it is not there any more")
        })
    }

    fn images(&self) -> std::sync::RwLockReadGuard<'_, Images> {
        self.images.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn images_mut(&self) -> std::sync::RwLockWriteGuard<'_, Images> {
        self.images.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn environments(&self) -> std::sync::RwLockReadGuard<'_, environment::Environments> {
        self.environments.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn environments_mut(&self) -> std::sync::RwLockWriteGuard<'_, environment::Environments> {
        self.environments.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn changing(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn layer_dir(&self, digest: &str) -> PathBuf {
        store::layer_dir(&self.dir, digest)
    }
}

fn disk(what: &'static str) -> impl FnOnce(std::io::Error) -> api::Error {
    move |source| Error::Disk { what, source }.into()
}
