//! The directories: opening, sweeping, scratch space, files that appear whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use api::{Result, image::ImageInfo};
use serde::{Deserialize, Serialize};

use super::{Images, Key, LayerFiles, Resolved, disk, environment::ENVIRONMENTS, known::KNOWN};
use crate::{
    import::{BLOB, META},
    pull::blobs::BLOBS,
};

pub const LAYERS: &str = "layers";
pub const IMAGES: &str = "images";
const TMP: &str = "tmp";
const MANIFEST: &str = "manifest.json";

/// What stands beside a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub digest: String,
    pub files: u64,
    pub meta_bytes: u64,
    pub blob_bytes: u64,
    pub data_bytes: u64,
    /// Its blob is not here: a server shows it, see [`super::Catalogue::with_remote`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
}

/// `digest` is one of ours: `blake3:<hex>`.
pub fn layer_dir(dir: &Path, digest: &str) -> PathBuf {
    dir.join(LAYERS).join(digest.strip_prefix("blake3:").unwrap_or(digest))
}

/// Ends with its process, however that ends.
pub struct Lock(#[allow(dead_code)] File);

/// The images, and the lock where nobody else has the directory open.
pub fn open(dir: &Path, remote: &Path) -> Result<(Images, Option<Lock>)> {
    for part in [LAYERS, IMAGES, ENVIRONMENTS, KNOWN, BLOBS, TMP] {
        fs::create_dir_all(dir.join(part)).map_err(disk("create the catalogue"))?;
    }
    sync_dir(dir).map_err(disk("create the catalogue"))?;
    let lock = lock(dir).map_err(disk("lock the catalogue"))?;
    if lock.is_some() {
        sweep(&dir.join(TMP)).map_err(disk("sweep the catalogue"))?;
        sweep_names(&dir.join(IMAGES)).map_err(disk("sweep the catalogue"))?;
    } else {
        tracing::warn!(dir = %dir.display(), "the catalogue is open elsewhere: its scratch directories are left alone");
    }
    Ok((load(dir, remote).map_err(disk("read the catalogue"))?, lock))
}

fn lock(dir: &Path) -> io::Result<Option<Lock>> {
    let file = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(e)) => Err(e),
    }
}

fn sweep(tmp: &Path) -> io::Result<()> {
    for entry in fs::read_dir(tmp)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes the directories of names that have no version: what was killed between the two.
fn sweep_names(images: &Path) -> io::Result<()> {
    for name in fs::read_dir(images)? {
        match fs::remove_dir(name?.path()) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// An image that does not hold together is left out, with a warning: the node can still serve the others.
fn load(dir: &Path, remote: &Path) -> io::Result<Images> {
    let mut images = Images::new();
    for name in fs::read_dir(dir.join(IMAGES))? {
        for version in fs::read_dir(name?.path())? {
            let path = version?.path();
            match load_image(dir, remote, &path) {
                Ok(image) => {
                    images.insert((image.info.name.clone(), image.info.version.clone()), Arc::new(image));
                }
                Err(cause) => tracing::warn!(path = %path.display(), %cause, "an image is left out"),
            }
        }
    }
    Ok(images)
}

fn load_image(dir: &Path, remote: &Path, path: &Path) -> io::Result<Resolved> {
    let info: ImageInfo = serde_json::from_slice(&fs::read(path)?)?;
    let layers =
        info.layers.iter().map(|digest| load_layer(dir, remote, digest)).collect::<io::Result<_>>()?;
    Ok(Resolved { info, layers, parts: Vec::new() })
}

/// What stands beside a published layer.
pub fn load_manifest(dir: &Path, digest: &str) -> io::Result<Manifest> {
    Ok(serde_json::from_slice(&fs::read(layer_dir(dir, digest).join(MANIFEST))?)?)
}

/// The files of a published layer, their sizes checked. `remote`: where blobs that are not here are shown.
pub fn load_layer(dir: &Path, remote: &Path, digest: &str) -> io::Result<LayerFiles> {
    let layer = layer_dir(dir, digest);
    let manifest = load_manifest(dir, digest)?;
    let meta = layer.join(META);
    let blob = match manifest.remote {
        true => remote.join(layer.file_name().unwrap_or_default()).join(BLOB),
        false => layer.join(BLOB),
    };
    // Who shows a remote blob checks it; it may not run yet.
    let is_whole = fs::metadata(&meta)?.len() == manifest.meta_bytes
        && (manifest.remote || manifest.blob_bytes == 0 || fs::metadata(&blob)?.len() == manifest.blob_bytes);
    if !is_whole || manifest.digest != digest {
        return Err(io::Error::other(format!("layer {digest} is damaged")));
    }
    Ok(LayerFiles { digest: digest.to_owned(), meta, blob: (manifest.blob_bytes > 0).then_some(blob) })
}

/// Writes a layer's manifest and syncs the layer; after this it may be renamed to its place.
pub fn seal(layer: &Path, manifest: &Manifest) -> io::Result<()> {
    File::open(layer.join(META))?.sync_all()?;
    if manifest.blob_bytes > 0 && !manifest.remote {
        File::open(layer.join(BLOB))?.sync_all()?;
    }
    write_synced(&layer.join(MANIFEST), &serde_json::to_vec_pretty(manifest)?)?;
    sync_dir(layer)
}

/// Renames a written record to `<names>/<name>/<version>.json`.
pub fn name(names: &Path, name: &str, version: &str, written: &Path) -> io::Result<()> {
    let dir = names.join(name);
    fs::create_dir_all(&dir)?;
    fs::rename(written, dir.join(format!("{version}.json")))?;
    sync_dir(&dir)?;
    sync_dir(names)
}

/// Removes `<names>/<name>/<version>.json`.
pub fn unname(names: &Path, (name, version): &Key) -> io::Result<()> {
    let dir = names.join(name);
    fs::remove_file(dir.join(format!("{version}.json")))?;
    sync_dir(&dir)?;
    match fs::remove_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        done => done,
    }
}

pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// A directory under `tmp`, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(TMP).join(uuid::Uuid::now_v7().to_string());
        fs::create_dir(&path).map_err(disk("create a scratch directory"))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %cause, "a scratch directory stays until the next start");
        }
    }
}
