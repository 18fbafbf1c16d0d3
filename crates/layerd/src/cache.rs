//! Chunks on disk, as the store has them, bounded: `<dir>/<2 hex>/<hex of the chunk's value>`.
//!
//! Invariants: a chunk's file appears by a rename; whoever reads one checks it, so a file that a crash of the machine
//! has damaged is removed and fetched again.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use storage::table::Value;

struct Entry {
    bytes: u64,
    /// Larger is later.
    used: u64,
}

#[derive(Default)]
struct Index {
    entries: HashMap<Value, Entry>,
    bytes: u64,
    clock: u64,
}

pub struct Cache {
    dir: PathBuf,
    bytes_max: u64,
    index: Mutex<Index>,
}

impl Cache {
    /// Finds what is there, oldest first, and removes what a crash left half done.
    pub fn open(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut found = Vec::new();
        for shard in fs::read_dir(dir)? {
            let shard = shard?.path();
            if !shard.is_dir() {
                continue;
            }
            for file in fs::read_dir(shard)? {
                let file = file?;
                let metadata = file.metadata()?;
                match value_of(&file.file_name().to_string_lossy()) {
                    Some(value) => found.push((metadata.modified()?, value, metadata.len())),
                    None => fs::remove_file(file.path())?,
                }
            }
        }
        found.sort_by_key(|(modified, ..): &(SystemTime, _, _)| *modified);
        let mut index = Index::default();
        for (_, value, bytes) in found {
            index.insert(value, bytes);
        }
        let cache = Self { dir: dir.to_owned(), bytes_max, index: Mutex::new(index) };
        cache.evict();
        Ok(cache)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, value: &Value) -> PathBuf {
        let hex = value.hex();
        self.dir.join(&hex[..2]).join(hex)
    }

    pub fn has(&self, value: &Value) -> bool {
        self.index().entries.contains_key(value)
    }

    /// Whether so many bytes more, and some besides, are still below the bound.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.index().bytes + bytes <= self.bytes_max / 10 * 8
    }

    /// What was put there; the caller checks it.
    pub fn get(&self, value: &Value) -> Option<Vec<u8>> {
        {
            let mut index = self.index();
            index.clock += 1;
            let now = index.clock;
            index.entries.get_mut(value)?.used = now;
        }
        fs::read(self.path(value)).ok()
    }

    /// One that is not what it should be.
    pub fn discard(&self, value: &Value) {
        self.index().remove(value);
        let _ = fs::remove_file(self.path(value));
    }

    /// Errors: the disk's; the chunk is then only not cached.
    pub fn put(&self, value: &Value, stored: &[u8]) -> io::Result<()> {
        let path = self.path(value);
        let fresh = path.with_extension("new");
        fs::create_dir_all(path.parent().unwrap_or(&self.dir))?;
        let written = fs::write(&fresh, stored).and_then(|()| fs::rename(&fresh, &path));
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        written?;
        self.index().insert(*value, stored.len() as u64);
        self.evict();
        Ok(())
    }

    /// Down to nine tenths, the least used first: not one file for each that comes.
    fn evict(&self) {
        let gone: Vec<Value> = {
            let mut index = self.index();
            if index.bytes <= self.bytes_max {
                return;
            }
            let mut by_use: Vec<(u64, Value)> = index.entries.iter().map(|(v, e)| (e.used, *v)).collect();
            by_use.sort_unstable_by_key(|(used, _)| *used);
            let target = self.bytes_max / 10 * 9;
            let mut gone = Vec::new();
            for (_, value) in by_use {
                if index.bytes <= target {
                    break;
                }
                index.remove(&value);
                gone.push(value);
            }
            gone
        };
        for value in gone {
            if let Err(error) = fs::remove_file(self.path(&value)) {
                tracing::warn!(%error, "a chunk stays in the cache's directory");
            }
        }
    }
}

impl Index {
    fn insert(&mut self, value: Value, bytes: u64) {
        self.remove(&value);
        self.clock += 1;
        self.bytes += bytes;
        self.entries.insert(value, Entry { bytes, used: self.clock });
    }

    fn remove(&mut self, value: &Value) {
        self.bytes -= self.entries.remove(value).map_or(0, |entry| entry.bytes);
    }
}

fn value_of(name: &str) -> Option<Value> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: u8) -> Value {
        Value([n; 32])
    }

    #[test]
    fn chunks_are_found_again_and_half_written_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 1000).unwrap();
        cache.put(&value(1), b"one").unwrap();
        fs::write(cache.path(&value(2)).with_extension("new"), b"").unwrap_err();
        fs::write(cache.path(&value(1)).with_extension("new"), b"half").unwrap();
        let again = Cache::open(dir.path(), 1000).unwrap();
        assert_eq!(again.get(&value(1)).unwrap(), b"one");
        assert!(again.get(&value(2)).is_none());
        assert_eq!(fs::read_dir(dir.path().join("01")).unwrap().count(), 1);
        again.discard(&value(1));
        assert!(again.get(&value(1)).is_none());
    }

    #[test]
    fn the_least_used_go_first_and_the_bound_holds() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 1000).unwrap();
        for n in 0..10 {
            cache.put(&value(n), &[n; 100]).unwrap();
        }
        cache.get(&value(0)).unwrap();
        cache.put(&value(10), &[10; 100]).unwrap();
        assert!(cache.get(&value(0)).is_some() && cache.get(&value(1)).is_none());
        let bytes = cache.index().bytes;
        assert!(bytes <= 1000, "{bytes}");
        let smaller = Cache::open(dir.path(), 300).unwrap();
        // Which of them stay is by their times, and these are of one moment.
        let bytes = smaller.index().bytes;
        assert!((1..=300).contains(&bytes), "{bytes}");
    }
}
