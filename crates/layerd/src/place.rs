//! Where things of layerd are in a data directory.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Paths below a data directory.
#[derive(Debug, Clone)]
pub struct Place {
    data: PathBuf,
}

impl Place {
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned() }
    }
    /// The mount.
    pub fn mount(&self) -> PathBuf {
        self.data.join("layerd")
    }
    /// Chunks on disk.
    pub fn cache(&self) -> PathBuf {
        self.data.join("cache")
    }
    /// `<hex>/store.json` for each layer: the manifest, of those that are remote.
    pub fn layers(&self) -> PathBuf {
        self.data.join("volume/layers")
    }
    /// Locked by the holder while it lives, with its process id in it.
    pub(crate) fn lock(&self) -> PathBuf {
        self.data.join("run/layerd.lock")
    }
    /// The worker's process id.
    pub(crate) fn worker(&self) -> PathBuf {
        self.data.join("run/layerd.worker")
    }
    /// What the worker is told: the store.
    pub(crate) fn config(&self) -> PathBuf {
        self.data.join("run/layerd.json")
    }
    pub(crate) fn stats(&self) -> PathBuf {
        self.data.join("run/layerd.stats")
    }
}

/// The name of a layer's manifest in its directory.
pub const MANIFEST: &str = "store.json";

/// Of a layer's data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub fetched_bytes: u64,
    /// Those of them that its trace named, before anyone asked.
    pub prefetched_bytes: u64,
}

/// What was fetched from the store of each layer, by the hex of its digest.
pub type Fetched = BTreeMap<String, Counts>;

/// What the worker last told, half a second ago at most while it is busy. Empty where it has not told anything.
pub fn fetched(data: &Path) -> Fetched {
    let text = fs::read(Place::new(data).stats()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// A file that appears whole.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes)?;
    fs::rename(&fresh, path)
}
