//! The ledger: one JSON file for each sandbox that lives, `<dir>/<sandbox id>.json`. It is how an edge that was killed
//! finds its sandboxes again.
//!
//! A file is replaced by an atomic rename, without fsync: the ledger must survive the process, not the machine. When
//! the machine goes, so do its sandboxes; each entry names the boot that it belongs to. A file that cannot be read is
//! moved to `<dir>/corrupt/` and told to the log, never a reason to stop.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api::{
    SandboxId,
    image::ImageConfig,
    spec::{SandboxSpec, root_project},
    state::State,
};
use runtime::Record;
use serde::{Deserialize, Serialize};

pub use crate::sandbox::disk::Kept;

const VERSION: u32 = 1;

/// The create request that an item came from, for a caller who sends it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryKey {
    pub key: String,
    pub index: u32,
    pub count: u32,
}

/// All that is needed to take a sandbox over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub version: u32,
    pub boot_id: String,
    pub id: SandboxId,
    pub spec: SandboxSpec,
    /// The id of the project that it belongs to.
    #[serde(default = "root_project")]
    pub project: String,
    /// Of the quota that was taken for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Digests of the EROFS layers, base first.
    pub layers: Vec<String>,
    /// Digests of the images that these came from.
    pub images: Vec<String>,
    /// Of the base image.
    #[serde(default)]
    pub config: ImageConfig,
    /// Oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Kept>,
    /// The checkpoint that it is being returned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_back: Option<String>,
    pub state: State,
    pub created_ms: u64,
    pub expires_ms: u64,
    /// The runtime's own.
    pub record: Record,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<EntryKey>,
}

/// The directory. Each id has one writer at a time.
pub struct Ledger {
    dir: PathBuf,
    boot_id: String,
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Replaces `path` by `bytes`, whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

impl Ledger {
    pub fn open(dir: &Path) -> io::Result<Self> {
        Self::open_at_boot(dir, boot_id()?)
    }

    fn open_at_boot(dir: &Path, boot_id: String) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), boot_id })
    }

    pub fn version(&self) -> u32 {
        VERSION
    }
    /// The boot that new entries belong to.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// About 40 us: it may be called on an async thread.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        write_whole(&self.path(&entry.id), &serde_json::to_vec(entry)?)
    }

    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Every entry that can be read, oldest first. What cannot be is moved aside.
    pub fn load(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.dir)? {
            let path = file?.path();
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") => {}
                // A write that a crash cut short; the file that it would have replaced is whole.
                Some("tmp") => {
                    fs::remove_file(&path)?;
                    continue;
                }
                _ => continue,
            }
            match read(&path) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "ledger: an unreadable entry is moved aside");
                    self.move_aside(&path)?;
                }
            }
        }
        entries.sort_by(|a: &Entry, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    fn move_aside(&self, path: &Path) -> io::Result<()> {
        let corrupt = self.dir.join("corrupt");
        fs::create_dir_all(&corrupt)?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        // Never over an older one: it may be what somebody is looking for.
        let free = (0..).map(|n| corrupt.join(format!("{name}.{n}"))).find(|p| !p.exists());
        fs::rename(path, free.unwrap_or(corrupt))
    }
}

fn read(path: &Path) -> Result<Entry, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let entry: Entry = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    if entry.version != VERSION {
        return Err(format!("version {} where {VERSION} is known", entry.version));
    }
    let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    if name != entry.id.as_str() {
        return Err(format!("the entry is of {}", entry.id));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn entry(ledger: &Ledger) -> Entry {
        Entry {
            version: ledger.version(),
            boot_id: ledger.boot_id().to_owned(),
            id: SandboxId::new(&"e1".parse().unwrap()),
            spec: SandboxSpec::new("base"),
            project: root_project(),
            reservation: None,
            layers: vec!["blake3:00".into()],
            images: Vec::new(),
            config: ImageConfig::default(),
            checkpoints: Vec::new(),
            rolling_back: None,
            state: State::Running,
            created_ms: 1,
            expires_ms: 2,
            record: serde_json::json!({"a": 1}),
            key: Some(EntryKey { key: "k".into(), index: 0, count: 1 }),
        }
    }

    #[test]
    fn entries_round_trip_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        let (a, b) = (entry(&ledger), entry(&ledger));
        ledger.write(&b).unwrap();
        ledger.write(&a).unwrap();
        ledger.write(&a).unwrap();
        assert_eq!(ledger.load().unwrap(), [a.clone(), b.clone()]);
        ledger.remove(&a.id).unwrap();
        ledger.remove(&a.id).unwrap();
        assert_eq!(ledger.load().unwrap(), [b]);
    }

    #[test]
    fn what_cannot_be_read_is_moved_aside_and_the_rest_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        let good = entry(&ledger);
        ledger.write(&good).unwrap();
        let other = entry(&ledger);
        fs::write(dir.path().join("x.json"), b"{\"version\":1").unwrap();
        fs::write(dir.path().join("y.json"), serde_json::to_vec(&good).unwrap()).unwrap();
        fs::write(dir.path().join("half.tmp"), b"{").unwrap();
        fs::write(ledger.path(&other.id), serde_json::to_vec(&Entry { version: 99, ..other }).unwrap())
            .unwrap();
        assert_eq!(ledger.load().unwrap(), std::slice::from_ref(&good));
        assert_eq!(fs::read_dir(dir.path().join("corrupt")).unwrap().count(), 3);
        assert!(!dir.path().join("half.tmp").exists());
        fs::write(dir.path().join("x.json"), b"").unwrap();
        assert_eq!(ledger.load().unwrap(), [good]);
        assert_eq!(fs::read_dir(dir.path().join("corrupt")).unwrap().count(), 4, "none was overwritten");
    }
}
