//! How often each image was used: sandboxes created of it, and when the last one was. In memory, written down from time to
//! time; a crash loses what was counted since.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use api::image::Usage;

use crate::{clock::now_ms, ledger::write_whole, node::Parts};

/// Between writes of what has changed.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// By digest of an image or an environment.
pub(crate) struct Usages {
    file: PathBuf,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    of: HashMap<String, Usage>,
    changed: bool,
}

impl Usages {
    /// A file that cannot be read is counted anew: these are counts, no promises.
    pub(crate) fn open(file: &Path) -> Self {
        let read = || -> io::Result<HashMap<String, Usage>> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
        let of = read().unwrap_or_else(|cause| {
            if cause.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%cause, "the counts of images cannot be read: they begin anew");
            }
            HashMap::new()
        });
        Self { file: file.to_owned(), counts: Mutex::new(Counts { of, changed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more sandbox is created of these.
    pub(crate) fn count(&self, digests: &[String]) {
        let mut counts = self.lock();
        for digest in digests {
            let usage = counts.of.entry(digest.clone()).or_default();
            usage.sandboxes += 1;
            usage.last_ms = now_ms();
        }
        counts.changed = true;
    }

    pub(crate) fn of(&self, digest: &str) -> Usage {
        self.lock().of.get(digest).copied().unwrap_or_default()
    }

    /// Writes what has changed, without what is not in `known`: what is counted stays as bounded as the catalogue. Blocks.
    pub(crate) fn write(&self, known: impl FnOnce() -> Option<HashSet<String>>) -> io::Result<()> {
        if !std::mem::take(&mut self.lock().changed) {
            return Ok(());
        }
        let known = known();
        let bytes = {
            let mut counts = self.lock();
            if let Some(known) = known {
                counts.of.retain(|digest, _| known.contains(digest));
            }
            serde_json::to_vec(&counts.of)?
        };
        write_whole(&self.file, &bytes).inspect_err(|_| self.lock().changed = true)
    }
}

/// Writes for as long as the edge lives.
pub(crate) async fn keep_written(parts: Weak<Parts>) {
    loop {
        tokio::time::sleep(WRITE_PERIOD).await;
        let Some(parts) = parts.upgrade() else { return };
        write(&parts).await;
    }
}

pub(crate) async fn write(parts: &Arc<Parts>) {
    let parts = parts.clone();
    let written = tokio::task::spawn_blocking(move || parts.usages.write(|| known(&parts))).await;
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the counts of images are not written"),
        Err(error) => tracing::error!(%error, "usage: the catalogue panicked"),
    }
}

/// Digests of all that may be counted. None where the catalogue cannot be asked.
fn known(parts: &Parts) -> Option<HashSet<String>> {
    let mut known: HashSet<String> =
        parts.layers.list().ok()?.into_iter().map(|image| image.digest).collect();
    let environments = parts.layers.environments().map(|environments| environments.list());
    for environment in environments.into_iter().flatten() {
        known.extend(environment.digest);
        known.extend(environment.parts.into_iter().filter_map(|part| part.digest));
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_over_a_restart_and_those_of_what_is_gone_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usage.json");
        let usages = Usages::open(&file);
        usages.count(&["a".to_owned(), "b".to_owned()]);
        usages.count(&["a".to_owned()]);
        assert_eq!((usages.of("a").sandboxes, usages.of("b").sandboxes, usages.of("c").sandboxes), (2, 1, 0));
        assert!(usages.of("a").last_ms > 0);
        usages.write(|| Some(HashSet::from(["a".to_owned()]))).unwrap();
        let again = Usages::open(&file);
        assert_eq!((again.of("a"), again.of("b")), (usages.of("a"), Usage::default()));
        again.write(|| panic!("nothing has changed")).unwrap();
    }

    #[test]
    fn a_damaged_file_begins_anew_and_a_failed_write_is_done_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/usage.json");
        let usages = Usages::open(&file);
        usages.count(&["a".to_owned()]);
        assert!(usages.write(|| None).is_err());
        fs::create_dir(dir.path().join("deep")).unwrap();
        usages.write(|| None).unwrap();
        assert_eq!(Usages::open(&file).of("a").sandboxes, 1);
        fs::write(&file, "{").unwrap();
        assert_eq!(Usages::open(&file).of("a"), Usage::default());
    }
}
