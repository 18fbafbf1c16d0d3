//! The images that wait for the store, in a file, so that a restart forgets none.
//!
//! Invariant: what is in the file is published, or known to be impossible, before it leaves it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// More are left out, with a warning.
const WAITING_MAX: usize = 1024;
/// A reference is two names of at most 63 bytes, quoted.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// What an addition was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    New,
    /// It waits already: it is to be published once more, for it may be another image by now.
    Again,
    Full,
}

/// What is left to do of one that was published.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    Again,
}

pub(super) struct Waiting {
    file: PathBuf,
    /// True: once more.
    images: BTreeMap<String, bool>,
}

impl Waiting {
    /// A file that cannot be understood is as none. Errors: the disk's.
    pub(super) fn open(file: &Path) -> io::Result<Self> {
        let names: Vec<String> = match fs::metadata(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
            Ok(found) if found.len() > FILE_BYTES_MAX => Vec::new(),
            Ok(_) => serde_json::from_slice(&fs::read(file)?).unwrap_or_else(|error| {
                tracing::warn!(%error, "publish: what waited for the store is not known any more");
                Vec::new()
            }),
        };
        let images = names.into_iter().take(WAITING_MAX).map(|name| (name, false)).collect();
        Ok(Self { file: file.to_owned(), images })
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.images.keys().cloned().collect()
    }

    /// Errors: it waits, and the file does not say so.
    pub(super) fn add(&mut self, reference: &str) -> io::Result<Added> {
        if let Some(again) = self.images.get_mut(reference) {
            *again = true;
            return Ok(Added::Again);
        }
        if self.images.len() >= WAITING_MAX {
            return Ok(Added::Full);
        }
        self.images.insert(reference.to_owned(), false);
        self.write()?;
        Ok(Added::New)
    }

    /// Errors: it waits no more, and the file does not say so.
    pub(super) fn done(&mut self, reference: &str) -> io::Result<Left> {
        if let Some(again @ true) = self.images.get_mut(reference) {
            *again = false;
            return Ok(Left::Again);
        }
        self.images.remove(reference);
        self.write()?;
        Ok(Left::Nothing)
    }

    fn write(&self) -> io::Result<()> {
        let fresh = self.file.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&self.all())?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_there_after_a_restart_and_what_is_done_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waiting.json");
        let mut waiting = Waiting::open(&file).unwrap();
        assert_eq!(waiting.add("a:1").unwrap(), Added::New);
        assert_eq!(waiting.add("b:1").unwrap(), Added::New);
        assert_eq!(Waiting::open(&file).unwrap().all(), ["a:1", "b:1"]);
        assert_eq!(waiting.add("a:1").unwrap(), Added::Again);
        assert_eq!(waiting.done("a:1").unwrap(), Left::Again);
        assert_eq!(Waiting::open(&file).unwrap().all(), ["a:1", "b:1"]);
        assert_eq!(waiting.done("a:1").unwrap(), Left::Nothing);
        assert_eq!(Waiting::open(&file).unwrap().all(), ["b:1"]);
        for bad in ["[1", "{}"] {
            fs::write(&file, bad).unwrap();
            assert!(Waiting::open(&file).unwrap().all().is_empty());
        }
    }

    #[test]
    fn it_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waiting.json");
        let names: Vec<String> = (0..WAITING_MAX).map(|n| format!("{n:063}:{n:063}")).collect();
        fs::write(&file, serde_json::to_vec(&names).unwrap()).unwrap();
        assert!(fs::metadata(&file).unwrap().len() <= FILE_BYTES_MAX);
        let mut waiting = Waiting::open(&file).unwrap();
        assert_eq!(waiting.add("one:more").unwrap(), Added::Full);
        waiting.done(&names[0]).unwrap();
        assert_eq!(waiting.add("one:more").unwrap(), Added::New);
    }
}
