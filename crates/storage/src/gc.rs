//! gc: removes from the store what no image names any more.
//!
//! ```text
//! images, stacks --name--> layers; layers --name--> objects
//! 1. manifests that no image names, and old      -> removed
//! 2. a pause; then every manifest that is there  -> the objects that stay
//! 3. objects and traces of no manifest, and old  -> removed
//! ```
//! Nobody is locked out: a publish makes what it uses again young (`publish.rs`), and each removal looks at the age again.
//! Why that is enough: `docs/rfd/0003-store.md`.
//!
//! Invariant: a record or a manifest that cannot be read ends a collection before it removes what it may name.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    error::{Error, Result},
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    publish::layer_name,
    store::{Stat, Store},
    table::Value,
};

/// What is younger is never removed: nothing that a publish has made or found stays unnamed for so long.
pub const OLDER_THAN_MIN: Duration = Duration::from_secs(60 * 60);
/// Names of one kind that a collection keeps in memory, about 100 bytes each.
const NAMES_MAX: usize = 4 << 20;
const REMOVALS_IN_FLIGHT: usize = 16;
const READS_IN_FLIGHT: usize = 16;

/// What a collection has done; of a dry run, what it would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub layers_kept: u64,
    pub layers: u64,
    pub objects: u64,
    pub traces: u64,
    /// Of all that was removed.
    pub bytes: u64,
    /// What could not be removed and stays for the next one.
    pub failed: u64,
}

/// Whether anything is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Remove,
    DryRun,
}

struct Collection<'a> {
    store: &'a Store,
    limit: SystemTime,
    mode: Mode,
}

impl Store {
    /// Removes what no image and no stack names and is older than `older_than`. Errors: `Damaged` and `Config` where a
    /// record or a manifest cannot be read, `Unavailable`.
    pub async fn gc(&self, older_than: Duration, mode: Mode) -> Result<Swept> {
        let limit = SystemTime::now().checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
        let collection = Collection { store: self, limit, mode };
        let mut swept = Swept::default();
        let live = collection.live_layers().await?;
        let dead =
            collection.old("layers", |name| layer_of(name).is_some_and(|hex| !live.contains(hex))).await?;
        let gone = collection.remove(dead, &mut swept).await;
        swept.layers = gone.len() as u64;
        if mode == Mode::Remove && !gone.is_empty() {
            // Whoever saw one of them before it went, and writes it again, has done so by then.
            tokio::time::sleep(self.ages.settle).await;
        }
        let (layers, objects) = collection.named(&gone).await?;
        swept.layers_kept = layers.len() as u64;
        let is_loose = |name: &str| object_of(name).is_some_and(|value| !objects.contains(&value));
        let dead = collection.old("objects", is_loose).await?;
        swept.objects = collection.remove(dead, &mut swept).await.len() as u64;
        let is_loose = |name: &str| layer_of(name).is_some_and(|hex| !layers.contains(hex));
        let dead = collection.old("traces", is_loose).await?;
        swept.traces = collection.remove(dead, &mut swept).await.len() as u64;
        tracing::info!(?swept, ?mode, "store: collected");
        Ok(swept)
    }
}

impl Collection<'_> {
    /// The layers that an image or a stack names, in hex.
    async fn live_layers(&self) -> Result<HashSet<String>> {
        let mut live = HashSet::new();
        for under in ["images", "stacks"] {
            let names = self.store.walk(under).map(|found| async move {
                match found?.0 {
                    // One that has gone meanwhile names nothing.
                    name if name.ends_with(".json") => self.store.record(&format!("{under}/{name}")).await,
                    _ => Ok(None),
                }
            });
            let mut records = std::pin::pin!(names.buffer_unordered(READS_IN_FLIGHT));
            while let Some(image) = records.try_next().await? {
                let layers = image.into_iter().flat_map(|image| image.layers);
                live.extend(layers.map(|digest| crate::store::bare(&digest).to_owned()));
                bounded(live.len())?;
            }
        }
        Ok(live)
    }

    /// The names below `under` that are `loose` and old.
    async fn old(&self, under: &str, loose: impl Fn(&str) -> bool) -> Result<Vec<(String, Stat)>> {
        let mut found = Vec::new();
        let mut all = std::pin::pin!(self.store.walk(under));
        while let Some((name, stat)) = all.try_next().await? {
            if stat.modified <= self.limit && loose(&name) {
                found.push((format!("{under}/{name}"), stat));
                bounded(found.len())?;
            }
        }
        Ok(found)
    }

    /// The names that went, and what that gave; of a dry run, that would.
    async fn remove(&self, names: Vec<(String, Stat)>, swept: &mut Swept) -> HashSet<String> {
        let removals = stream::iter(names).map(|(name, stat)| async move {
            let removed = match self.mode {
                Mode::Remove => self.store.remove_old(&name, self.limit).await,
                Mode::DryRun => Ok(Some(stat.bytes)),
            };
            (name, removed)
        });
        let done: Vec<_> = removals.buffer_unordered(REMOVALS_IN_FLIGHT).collect().await;
        let mut gone = HashSet::new();
        for (name, removed) in done {
            match removed {
                Ok(Some(bytes)) => {
                    swept.bytes += bytes;
                    gone.insert(name);
                }
                // Used again meanwhile.
                Ok(None) => {}
                Err(error) => {
                    swept.failed += 1;
                    tracing::warn!(%error, name, "store: what nobody names stays");
                }
            }
        }
        gone
    }

    /// The layers that are there, in hex, and the objects that they name. `gone`: those that a dry run would have removed.
    async fn named(&self, gone: &HashSet<String>) -> Result<(HashSet<String>, HashSet<Value>)> {
        let (mut layers, mut objects) = (HashSet::new(), HashSet::new());
        let mut all = std::pin::pin!(self.store.walk("layers"));
        while let Some((name, _)) = all.try_next().await? {
            let Some(hex) = layer_of(&name) else { continue };
            if self.mode == Mode::DryRun && gone.contains(&format!("layers/{name}")) {
                continue;
            }
            let digest = format!("blake3:{hex}");
            let parse = |json: bytes::Bytes| Manifest::parse(&digest, &json);
            let read = self.store.document(&layer_name(&digest), MANIFEST_BYTES_MAX, parse).await?;
            let Some(manifest) = read else { continue };
            layers.insert(hex.to_owned());
            objects.extend(manifest.batches.iter().map(|batch| batch.object.hash));
            objects.insert(manifest.meta.hash);
            bounded(objects.len())?;
        }
        Ok((layers, objects))
    }
}

fn bounded(count: usize) -> Result<()> {
    let text = || Error::Config(format!("the store has more than {NAMES_MAX} names of one kind"));
    if count <= NAMES_MAX { Ok(()) } else { Err(text()) }
}

/// `<hex>.json`. None: not one of ours, and none of our business.
fn layer_of(name: &str) -> Option<&str> {
    let hex = name.strip_suffix(".json")?;
    is_hex(hex).then_some(hex)
}

/// `<2 hex>/<hex>`
fn object_of(name: &str) -> Option<Value> {
    let (shard, hex) = name.split_once('/')?;
    let ok = is_hex(hex) && hex.starts_with(shard) && shard.len() == 2;
    Some(Value(*blake3::Hash::from_hex(hex).ok().filter(|_| ok)?.as_bytes()))
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_known() {
        let hex = "ab".repeat(32);
        assert_eq!(layer_of(&format!("{hex}.json")), Some(&*hex));
        assert!(object_of(&format!("ab/{hex}")).is_some());
        for other in ["x.json".to_owned(), hex.clone(), format!("{}.json", hex.to_uppercase())] {
            assert!(layer_of(&other).is_none(), "{other}");
        }
        for other in
            [format!("cd/{hex}"), format!("a/{hex}"), hex.clone(), format!("ab/{hex}#1"), format!("/{hex}")]
        {
            assert!(object_of(&other).is_none(), "{other}");
        }
    }
}
