//! Which remote layers there are, and the ids of their nodes: made of the digest, so that a new worker knows those that
//! the kernel has from the old one.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use storage::Manifest;

use crate::{
    chunks::{Ahead, Why},
    place::{Counts, Fetched, MANIFEST},
    touched::Touched,
    wire::Attributes,
};

pub const ROOT: u64 = 1;
/// The one name in a layer's directory.
pub const BLOB: &str = "data.blob";
const DIRECTORY: u64 = 2;
const FILE: u64 = 3;

/// A layer whose data is in the store.
pub struct Layer {
    pub manifest: Manifest,
    pub hex: String,
    id: u64,
    pub ahead: Mutex<Ahead>,
    pub touched: Mutex<Touched>,
    fetched_bytes: AtomicU64,
    prefetched_bytes: AtomicU64,
    is_prefetched: AtomicBool,
}

impl Layer {
    pub fn directory(&self) -> Attributes {
        Attributes { node: self.id | DIRECTORY, size: 0, is_directory: true }
    }
    pub fn file(&self) -> Attributes {
        Attributes { node: self.id | FILE, size: self.manifest.blob_bytes, is_directory: false }
    }
    pub fn count_fetched(&self, bytes: u64, why: Why) {
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if why == Why::Ahead {
            self.prefetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    pub fn counts(&self) -> Counts {
        Counts {
            fetched_bytes: self.fetched_bytes.load(Ordering::Relaxed),
            prefetched_bytes: self.prefetched_bytes.load(Ordering::Relaxed),
        }
    }
    /// True, the first time.
    pub fn begin_prefetch(&self) -> bool {
        !self.is_prefetched.swap(true, Ordering::Relaxed)
    }
}

/// 62 bits of the digest, and room for what kind of node it is.
fn id_of(hex: &str) -> Option<u64> {
    let ok = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    Some(u64::from_str_radix(hex.get(..16).filter(|_| ok)?, 16).ok()? & !3)
}

/// All layers that anyone has asked for.
pub struct Layers {
    dir: PathBuf,
    /// What workers before have fetched.
    before: Fetched,
    known: Mutex<HashMap<u64, Arc<Layer>>>,
}

/// What a node id stands for.
pub enum Node {
    Root,
    Directory(Arc<Layer>),
    File(Arc<Layer>),
}

impl Layers {
    /// `dir`: the catalogue's, `<hex>/` for each layer.
    pub fn new(dir: &Path, before: Fetched) -> Self {
        Self { dir: dir.to_owned(), before, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Arc<Layer>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of each layer, with what workers before have fetched.
    pub fn fetched(&self) -> Fetched {
        let mut all = self.before.clone();
        for layer in self.known().values() {
            all.insert(layer.hex.clone(), layer.counts());
        }
        all
    }

    pub fn all(&self) -> Vec<Arc<Layer>> {
        self.known().values().cloned().collect()
    }

    /// By the name of its directory. Blocks on the disk. None: there is no such remote layer (any more).
    pub fn named(&self, hex: &str) -> Option<Arc<Layer>> {
        let id = id_of(hex)?;
        let path = self.dir.join(hex).join(MANIFEST);
        if !path.exists() {
            return None;
        }
        if let Some(layer) = self.known().get(&id) {
            return (layer.hex == hex).then(|| layer.clone());
        }
        let layer = match self.load(hex, id, &path) {
            Ok(layer) => Arc::new(layer),
            Err(error) => {
                tracing::error!(%error, layer = hex, "a remote layer's manifest cannot be used");
                return None;
            }
        };
        Some(self.known().entry(id).or_insert(layer).clone())
    }

    fn load(&self, hex: &str, id: u64, path: &Path) -> io::Result<Layer> {
        // It was checked against the digest when it came, before it got its name.
        let manifest =
            Manifest::parse(&format!("blake3:{hex}"), &fs::read(path)?).map_err(io::Error::other)?;
        let before = self.before.get(hex).copied().unwrap_or_default();
        Ok(Layer {
            manifest,
            hex: hex.to_owned(),
            id,
            ahead: Mutex::default(),
            touched: Mutex::default(),
            fetched_bytes: AtomicU64::new(before.fetched_bytes),
            prefetched_bytes: AtomicU64::new(before.prefetched_bytes),
            is_prefetched: AtomicBool::new(false),
        })
    }

    /// A node that the kernel knows, from this worker or from one before. Blocks on the disk.
    pub fn node(&self, node: u64) -> Option<Node> {
        if node == ROOT {
            return Some(Node::Root);
        }
        let known = self.known().get(&(node & !3)).cloned();
        let layer = match known {
            Some(layer) => layer,
            None => {
                let entries = fs::read_dir(&self.dir).ok()?.flatten();
                let mut names = entries.filter_map(|e| e.file_name().into_string().ok());
                self.named(&names.find(|hex| id_of(hex) == Some(node & !3))?)?
            }
        };
        match node & 3 {
            DIRECTORY => Some(Node::Directory(layer)),
            FILE => Some(Node::File(layer)),
            _ => None,
        }
    }
}
