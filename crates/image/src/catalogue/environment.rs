//! Environments: named compositions. Once looked up, one is an image like any other.
//!
//! ```text
//! <dir>/environments/<name>/<version>.json    never changes
//! ```
//! Invariants: no image and no environment have one name and version; the layers of exact parts stay while the environment
//! is there; all of it changes under the lock that images appear and vanish under. See docs/rfd/0004-environments.md.

mod record;

use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc};

use api::{
    Code, Error, Result,
    environment::{EnvironmentInfo, EnvironmentRequest},
    image::{ImageInfo, LayerKind, Usage},
    limit,
};

use super::{Catalogue, Images, Key, Resolved, disk, publish, resolve, store};
pub(super) use record::Record;
use record::{Meaning, Part};

pub(super) const ENVIRONMENTS: &str = "environments";

/// What a catalogue knows of its environments.
pub(super) type Environments = BTreeMap<Key, Arc<Record>>;

/// One that does not hold together is left out, with a warning.
pub(super) fn load(dir: &Path) -> io::Result<Environments> {
    let mut environments = Environments::new();
    for name in fs::read_dir(dir.join(ENVIRONMENTS))? {
        for version in fs::read_dir(name?.path())? {
            let path = version?.path();
            match fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<Record>(&bytes)?)) {
                Ok(record) => drop(environments.insert(record.key(), Arc::new(record))),
                Err(cause) => tracing::warn!(path = %path.display(), %cause, "an environment is left out"),
            }
        }
    }
    Ok(environments)
}

impl Catalogue {
    /// Names a composition. The same again is answered as if it were new.
    /// Errors: `not_found`; `invalid_argument` for a part of another kind, or too many layers; `already_exists`.
    pub fn environment_create(&self, request: &EnvironmentRequest) -> Result<EnvironmentInfo> {
        request.validate()?;
        let _changing = self.changing();
        let record = Record::new(request, &self.images())?;
        let key = record.key();
        let meaning = self.meaning(&record)?;
        if meaning.layers.len() > limit::LAYERS_MAX {
            let (count, max) = (meaning.layers.len(), limit::LAYERS_MAX);
            return Err(Error::invalid(format!(
                "its images bring {count} file system layers, at most {max}"
            )));
        }
        if self.images().contains_key(&key) {
            return Err(taken(&key, "an image"));
        }
        let there = self.environments().get(&key).cloned();
        match there {
            Some(there) if there.is_like(&record) => return Ok(self.info(&there)),
            Some(_) => return Err(taken(&key, "another environment")),
            None => {}
        }
        self.name_environment(&key, &record).map_err(disk("publish an environment"))?;
        let info = self.info(&record);
        tracing::info!(environment = key.0, version = key.1, digest = info.digest, "environment made");
        self.environments_mut().insert(key, Arc::new(record));
        Ok(info)
    }

    pub fn environment_list(&self) -> Vec<EnvironmentInfo> {
        self.environments().values().map(|record| self.info(record)).collect()
    }

    /// Errors: `not_found`.
    pub fn environment_inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        let record = self.environments().get(&resolve::key(reference)).cloned();
        record.map(|record| self.info(&record)).ok_or_else(|| not_found(reference))
    }

    /// Errors: `not_found`; `conflict` while a sandbox lives on it. `in_use`: as of [`Catalogue::remove`].
    pub fn environment_remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        let _changing = self.changing();
        let key = resolve::key(reference);
        let record = self.environments().get(&key).cloned().ok_or_else(|| not_found(reference))?;
        let lived_on = self.info(&record).digest.is_some_and(|digest| in_use(&digest));
        if lived_on {
            let text = format!("environment `{}:{}` is in use: stop its sandboxes first", key.0, key.1);
            return Err(Error::new(Code::Conflict, text));
        }
        let removed = store::unname(&self.dir.join(ENVIRONMENTS), &key);
        removed.map_err(disk("remove an environment"))?;
        self.environments_mut().remove(&key);
        let kept: Vec<String> = record.layers_kept().cloned().collect();
        let alone = self.unnamed_without(&[], &kept);
        for layer in alone.iter().filter(|layer| !in_use(layer)) {
            self.discard(layer).map_err(disk("remove a layer"))?;
        }
        self.forget_gone();
        Ok(())
    }

    /// What an environment means now, as an image. Errors: `not_found`, `invalid_argument` of a part that is followed.
    pub(super) fn find_environment(&self, reference: &str) -> Result<Resolved> {
        let environments = self.environments();
        let record = if reference.starts_with("blake3:") {
            let exact = environments.values().filter(|record| record.is_exact());
            exact.clone().find(|record| self.meaning(record).is_ok_and(|meaning| meaning.digest == reference))
        } else {
            environments.get(&resolve::key(reference))
        };
        let record = record.cloned().ok_or_else(|| resolve::not_found(reference))?;
        drop(environments);
        let meaning = self.meaning(&record)?;
        let layers = meaning.layers.iter().map(|digest| self.load_layer(digest));
        let layers = layers.collect::<io::Result<_>>().map_err(disk("read a layer of an environment"))?;
        let Meaning { digest, layers: digests, config, files, size_bytes, parts } = meaning;
        let info = ImageInfo {
            name: record.name.clone(),
            version: record.version.clone(),
            kind: LayerKind::Base,
            digest,
            layers: digests,
            config,
            files,
            size_bytes,
            created_ms: record.created_ms,
            built_on: None,
            in_use: 0,
            usage: Usage::default(),
        };
        Ok(Resolved { info, layers, parts })
    }

    fn meaning(&self, record: &Record) -> Result<Meaning> {
        let images = self.images();
        let parts = record.parts.iter().map(|part| part.image(&images)).collect::<Result<Vec<_>>>()?;
        record.compose(&parts, publish::stack_digest)
    }

    fn info(&self, record: &Record) -> EnvironmentInfo {
        let told = |part: &Part| part.told(&self.images());
        let meaning = self.meaning(record).inspect_err(|cause| {
            tracing::warn!(environment = record.name, %cause, "an environment has a part that is not there");
        });
        let meaning = meaning.ok();
        EnvironmentInfo {
            name: record.name.clone(),
            version: record.version.clone(),
            parts: record.parts.iter().map(told).collect(),
            digest: meaning.as_ref().map(|meaning| meaning.digest.clone()),
            files: meaning.as_ref().map_or(0, |meaning| meaning.files),
            size_bytes: meaning.as_ref().map_or(0, |meaning| meaning.size_bytes),
            layers: meaning.as_ref().map(|meaning| meaning.layers.clone()).unwrap_or_default(),
            config: meaning.map(|meaning| meaning.config).unwrap_or_default(),
            created_ms: record.created_ms,
            in_use: 0,
            usage: Usage::default(),
        }
    }

    fn name_environment(&self, (name, version): &Key, record: &Record) -> io::Result<()> {
        let scratch = store::Scratch::create(&self.dir).map_err(io::Error::other)?;
        let written = scratch.path().join("environment.json");
        store::write_synced(&written, &serde_json::to_vec_pretty(record)?)?;
        store::name(&self.dir.join(ENVIRONMENTS), name, version, &written)
    }
}

/// Refuses a name that an environment has. To be asked with the names locked.
pub(super) fn check_free(environments: &Environments, key: &Key) -> Result<()> {
    match environments.contains_key(key) {
        true => Err(taken(key, "an environment")),
        false => Ok(()),
    }
}

/// Refuses another kind under a name that an environment follows. To be asked with the names locked.
pub(super) fn check_kind(environments: &Environments, key: &Key, kind: LayerKind) -> Result<()> {
    for record in environments.values() {
        let followed =
            record.parts.iter().filter(|part| part.follow && resolve::key(&part.reference) == *key);
        if followed.into_iter().any(|part| part.kind != kind) {
            let text = format!(
                "`{}:{}` is followed by environment `{}:{}` as another kind of image",
                key.0, key.1, record.name, record.version
            );
            return Err(Error::new(Code::Conflict, text));
        }
    }
    Ok(())
}

/// Refuses to remove what an environment follows. To be asked with the names locked.
pub(super) fn check_unfollowed(environments: &Environments, images: &Images, keys: &[Key]) -> Result<()> {
    for record in environments.values() {
        let lost = record.parts.iter().filter(|part| part.follow).map(|part| resolve::key(&part.reference));
        if let Some(key) = lost.filter(|key| images.contains_key(key)).find(|key| keys.contains(key)) {
            let text = format!(
                "`{}:{}` is followed by environment `{}:{}`: remove that first",
                key.0, key.1, record.name, record.version
            );
            return Err(Error::new(Code::Conflict, text));
        }
    }
    Ok(())
}

fn taken((name, version): &Key, by: &str) -> Error {
    let text = format!("`{name}:{version}` is {by}: take another version, or remove it first");
    Error::new(Code::AlreadyExists, text)
}

fn not_found(reference: &str) -> Error {
    let reference: String = reference.chars().take(128).collect();
    Error::not_found(format!("no environment `{reference}` on this node"))
}
