//! Which layer was made of which layer of an image: what two images share is fetched and made once.
//!
//! ```text
//! <dir>/known/<key>-<layer>   the trace that a layer above needs (see `erofs::Below`), and its blake3 at the end
//! ```
//! Invariants: a record is a memory, never a promise: without its layer, or damaged, it is as if it were not there; a
//! layer that a pull has found is pinned until the pull ends, so no removal comes between finding and naming.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Catalogue,
    store::{self, Scratch},
};
use crate::{
    erofs::Summary,
    import::{Built, Origin, stack},
};

pub const KNOWN: &str = "known";
/// A larger trace costs more to keep than to make again.
const TRACE_BYTES_MAX: u64 = 64 << 20;
const HASH_BYTES: usize = 32;

/// Of layers, how many pulls need each; by digest.
#[derive(Default)]
pub struct Pins(Arc<Mutex<HashMap<String, usize>>>);

/// Pins of one pull; they end with it.
pub struct Pinned {
    pins: Arc<Mutex<HashMap<String, usize>>>,
    mine: Mutex<Vec<String>>,
}

impl Pins {
    pub fn holds(&self, digest: &str) -> bool {
        lock(&self.0).contains_key(digest)
    }

    pub fn start(&self) -> Pinned {
        Pinned { pins: self.0.clone(), mine: Mutex::default() }
    }
}

impl Pinned {
    fn pin(&self, digest: &str) {
        *lock(&self.pins).entry(digest.to_owned()).or_default() += 1;
        lock(&self.mine).push(digest.to_owned());
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = lock(&self.pins);
        for digest in lock(&self.mine).drain(..) {
            if let Some(count) = pins.get_mut(&digest) {
                *count -= 1;
                if *count == 0 {
                    pins.remove(&digest);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Layer by key, both in hex. Those whose layer is gone are removed from the disk.
pub fn load(dir: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut known = BTreeMap::new();
    for entry in fs::read_dir(dir.join(KNOWN))? {
        let entry = entry?;
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('-'));
        match parts.filter(|(_, layer)| dir.join(store::LAYERS).join(layer).is_dir()) {
            Some((key, layer)) => drop(known.insert(key.to_owned(), layer.to_owned())),
            None => fs::remove_file(entry.path())?,
        }
    }
    Ok(known)
}

/// What the catalogue knows, as an import asks it. All that is found is pinned.
pub struct Finder<'a> {
    pub catalogue: &'a Catalogue,
    pub pinned: &'a Pinned,
}

impl stack::Known for Finder<'_> {
    fn find(&self, key: &str) -> Option<stack::KnownLayer> {
        let catalogue = self.catalogue;
        let _changing = catalogue.changing();
        let layer = lock(&catalogue.known).get(key)?.clone();
        let digest = format!("blake3:{layer}");
        let summary = catalogue.load_layer(&digest).and_then(|_| summary(catalogue, &digest)).ok()?;
        let bytes = fs::read(catalogue.record(key, &layer)).ok()?;
        let (trace, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
        let (flags, trace) = (blake3::hash(trace) == *hash).then_some(trace)?.split_first()?;
        self.pinned.pin(&digest);
        let built = Built { dir: catalogue.layer_dir(&digest), summary, origin: Origin::Known };
        Some(stack::KnownLayer { built, hides_all: *flags == 1, trace: trace.to_vec() })
    }
}

fn summary(catalogue: &Catalogue, digest: &str) -> io::Result<Summary> {
    let manifest = store::load_manifest(&catalogue.dir, digest)?;
    Ok(Summary {
        digest: manifest.digest,
        files: manifest.files,
        meta_bytes: manifest.meta_bytes,
        blob_bytes: manifest.blob_bytes,
        data_bytes: manifest.data_bytes,
    })
}

impl Catalogue {
    fn record(&self, key: &str, layer: &str) -> PathBuf {
        self.dir.join(KNOWN).join(format!("{key}-{layer}"))
    }

    /// Remembers published layers. Without this they are only made again, so a failure is no failure of the import.
    pub(super) fn remember<'a>(&self, layers: impl Iterator<Item = &'a Built>, scratch: &Scratch) {
        for built in layers {
            let Origin::Image(trace) = &built.origin else { continue };
            let layer = built.summary.digest.trim_start_matches("blake3:");
            if let Err(cause) = self.remember_one(&trace.key, layer, &trace.path, scratch) {
                tracing::warn!(%cause, layer, "a layer will be made again where it is needed");
            }
        }
    }

    fn remember_one(&self, key: &str, layer: &str, trace: &Path, scratch: &Scratch) -> io::Result<()> {
        if fs::metadata(trace)?.len() > TRACE_BYTES_MAX {
            return Ok(());
        }
        let mut bytes = fs::read(trace)?;
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        let written = scratch.path().join(format!("{key}.known"));
        store::write_synced(&written, &bytes)?;
        fs::rename(written, self.record(key, layer))?;
        let before = lock(&self.known).insert(key.to_owned(), layer.to_owned());
        match before.filter(|before| before != layer) {
            Some(before) => fs::remove_file(self.record(key, &before)),
            None => Ok(()),
        }
    }

    /// Forgets what was made into layers that are gone. To be called with the names locked.
    pub(super) fn forget_gone(&self) {
        let mut known = lock(&self.known);
        let is_gone = |layer: &String| !self.dir.join(store::LAYERS).join(layer).is_dir();
        let gone: Vec<_> =
            known.iter().filter(|(_, layer)| is_gone(layer)).map(|(k, l)| (k.clone(), l.clone())).collect();
        for (key, layer) in gone {
            known.remove(&key);
            if let Err(cause) = fs::remove_file(self.record(&key, &layer)) {
                tracing::warn!(%cause, "a record of a layer that is gone stays until the next start");
            }
        }
    }
}
