//! Blobs that a pull has fetched whole: kept until the pull ends, so that one which was killed goes on from them.
//!
//! Invariants: a blob gets its name when it is whole, checked and synced; a pull that ends, well or not, takes its
//! blobs along, and only a kill leaves any; what is older than a day belongs to no pull.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::PULL_DEADLINE;

pub const BLOBS: &str = "blobs";
/// Longer than any pull may take.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
const _: () = assert!(AGE_MAX.as_secs() > PULL_DEADLINE.as_secs());

/// The blobs of one pull. Another pull of the same may remove them: an open file stays whole.
pub struct Blobs {
    dir: PathBuf,
    mine: Mutex<Vec<PathBuf>>,
}

impl Blobs {
    pub fn new(catalogue: &Path) -> Self {
        Self { dir: catalogue.join(BLOBS), mine: Mutex::default() }
    }

    /// One that is there, of that size; its bytes are to be checked.
    pub fn find(&self, hex: &str, size: u64) -> Option<File> {
        let path = self.dir.join(hex);
        let file = File::open(&path).ok()?;
        self.own(path);
        (file.metadata().ok()?.len() == size).then_some(file)
    }

    /// Gives the checked file at `part` its name.
    pub fn keep(&self, part: &Path, hex: &str) -> io::Result<()> {
        let path = self.dir.join(hex);
        self.own(path.clone());
        fs::rename(part, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Removes at the end what an earlier pull may have left of one, wanted again or not.
    pub fn take_along(&self, hex: &str) {
        self.own(self.dir.join(hex));
    }

    fn own(&self, path: PathBuf) {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        for path in self.mine.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            match fs::remove_file(&path) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %cause, "a blob stays for a day");
                }
                _ => {}
            }
        }
    }
}

/// Removes what a killed pull left in that catalogue, once nobody has come back for it.
pub fn sweep(catalogue: &Path) -> io::Result<()> {
    for entry in fs::read_dir(catalogue.join(BLOBS))? {
        let entry = entry?;
        // A pull may have removed it since.
        let Ok(modified) = entry.metadata().and_then(|m| m.modified()) else { continue };
        if modified.elapsed().is_ok_and(|age| age > AGE_MAX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
