//! The store itself: objects by name, each call with retries and a deadline.
//!
//! Invariant: what is read is bounded before it is read.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::Stream;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig, aws::AmazonS3Builder,
    local::LocalFileSystem, path::Path,
};
use tokio::time::{Instant, timeout_at};

use crate::{
    config::{Place, StoreConfig},
    error::{Error, Result},
    manifest::Object,
};

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// All attempts together.
    pub total: Duration,
    /// One of them.
    pub attempt: Duration,
    /// Before the second; doubled each time, up to a second.
    pub pause: Duration,
}

impl Patience {
    /// With time for another attempt after one that was not answered.
    pub fn within(total: Duration) -> Self {
        Self { total, attempt: total * 2 / 5, pause: (total / 400).min(Duration::from_millis(50)) }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::within(Duration::from_secs(20))
    }
}

/// How a publish and a garbage collection keep out of each other's way: `docs/rfd/0003-store.md` has the argument.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    /// What is older and used again is written again. Far below the grace of a collection, [`crate::gc::OLDER_THAN_MIN`].
    pub refresh: Duration,
    /// A removal that was decided is done in half of this.
    pub settle: Duration,
}

impl Default for Ages {
    fn default() -> Self {
        Self { refresh: Duration::from_secs(15 * 60), settle: Duration::from_secs(4) }
    }
}

/// Attempts at what came damaged, or is missing though something names it: a cache between may be wrong for a moment.
const ODD_ATTEMPTS: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether that an object is not there is an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    Answer,
    /// Something names it.
    Odd,
}

/// See the module.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Of a directory: while it is not there (not mounted), nothing is missing from it and nothing is written.
    directory: Option<PathBuf>,
    patience: Patience,
    pub ages: Ages,
    fetched_bytes: AtomicU64,
}

impl Store {
    /// Asks nothing of the store yet: it may be away. Errors: `Config`.
    pub fn open(config: &StoreConfig) -> Result<Self> {
        config.validate()?;
        let patience = Patience::within(Duration::from_millis(config.read_within_ms));
        match config.place()? {
            Place::Directory(path) => {
                let prefix =
                    Path::from_absolute_path(&path).map_err(|e| Error::Config(format!("url: {e}")))?;
                let objects = Arc::new(LocalFileSystem::new().with_fsync(true));
                Ok(Self { directory: Some(path), ..Self::over(objects, prefix, patience) })
            }
            Place::Bucket { name, prefix } => {
                let objects = Arc::new(bucket(config, &name)?);
                Ok(Self::over(objects, Path::from(prefix), patience))
            }
        }
    }

    /// Over any object store.
    pub fn over(objects: Arc<dyn ObjectStore>, prefix: Path, patience: Patience) -> Self {
        let ages = Ages::default();
        Self { objects, prefix, directory: None, patience, ages, fetched_bytes: AtomicU64::new(0) }
    }

    /// With other ages.
    #[must_use]
    pub fn with_ages(self, ages: Ages) -> Self {
        Self { ages, ..self }
    }

    /// Bytes of objects that were read so far, as they are stored.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Ordering::Relaxed)
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    fn check_there(&self) -> Result<()> {
        match &self.directory {
            Some(directory) if !directory.is_dir() => {
                Err(Error::Unavailable(format!("{} is no directory", directory.display())))
            }
            _ => Ok(()),
        }
    }

    /// A small object as a whole, as `parse` reads it. None: it is not there.
    pub(crate) async fn document<T>(
        &self,
        name: &str,
        bytes_max: u64,
        parse: impl Fn(Bytes) -> Result<T>,
    ) -> Result<Option<T>> {
        // Somebody waits for the answer, and can ask again.
        let patience = Patience { total: self.patience.total / 4, ..self.patience };
        let read = self
            .attempts(patience, Absence::Answer, || async { parse(self.read(name, None, bytes_max).await?) });
        match read.await {
            Ok(value) => Ok(Some(value)),
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A part of an object that a manifest names, as `check` finds it right.
    pub(crate) async fn part<T>(
        &self,
        object: &Object,
        range: Range<u64>,
        check: impl Fn(Bytes) -> Result<T>,
    ) -> Result<T> {
        let name = object_name(object);
        let bytes_max = range.end - range.start;
        self.patiently(Absence::Odd, || async {
            let bytes = self.read(&name, Some(range.clone()), bytes_max).await?;
            if bytes.len() as u64 != bytes_max {
                return Err(Error::Damaged(format!("object {}", object.hash.hex())));
            }
            check(bytes)
        })
        .await
    }

    async fn read(&self, name: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Bytes> {
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let found = self.objects.get_opts(&self.path(name), options).await.map_err(|error| match error {
            // A range past the end of an object that was cut short.
            object_store::Error::Generic { .. } if is_range(&error) => Error::Damaged(name.into()),
            other => other.into(),
        })?;
        if found.range.end - found.range.start > bytes_max {
            return Err(Error::Damaged(name.into()));
        }
        let bytes = found.bytes().await?;
        self.fetched_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Writes an object as a whole, in place of what has its name.
    pub(crate) async fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name);
        self.patiently(Absence::Odd, || async {
            self.objects.put(&path, bytes.clone().into()).await?;
            Ok(())
        })
        .await
    }

    /// Its size, where it is there.
    pub(crate) async fn size(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.stat(name).await?.map(|found| found.bytes))
    }

    /// What is known of it, where it is there.
    pub(crate) async fn stat(&self, name: &str) -> Result<Option<Stat>> {
        let path = self.path(name);
        let head =
            self.patiently(Absence::Answer, || async { Ok(self.objects.head(&path).await?.into()) }).await;
        match head {
            Ok(found) => Ok(Some(found)),
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes it. One that is not there is removed already.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.patiently(Absence::Answer, || async {
            match self.objects.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Removes it where it is older than `limit`: its size then. One attempt, which ends in half of `Ages::settle`.
    pub(crate) async fn remove_old(&self, name: &str, limit: SystemTime) -> Result<Option<u64>> {
        self.check_there()?;
        let path = self.path(name);
        let removal = async {
            let found: Stat = match self.objects.head(&path).await {
                Ok(found) => found.into(),
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if found.modified > limit {
                return Ok(None);
            }
            self.objects.delete(&path).await?;
            Ok(Some(found.bytes))
        };
        let late = |_| Err(Error::Unavailable("it did not remove in time".into()));
        tokio::time::timeout(self.ages.settle / 2, removal).await.unwrap_or_else(late)
    }

    /// Everything below `under`, one after the other: names relative to it.
    pub(crate) fn walk(&self, under: &str) -> impl Stream<Item = Result<(String, Stat)>> {
        use futures_util::StreamExt;
        let path = self.path(under);
        self.objects.list(Some(&path)).filter_map(move |found| {
            let one = match found {
                Ok(meta) => below(&meta, &path).map(|name| Ok((name, meta.into()))),
                Err(error) => Some(Err(error.into())),
            };
            std::future::ready(one)
        })
    }

    /// Names below `under`, relative to it. At most `count_max`.
    pub(crate) async fn names(&self, under: &str, count_max: usize) -> Result<Vec<String>> {
        use futures_util::{StreamExt, TryStreamExt};
        let path = self.path(under);
        self.patiently(Absence::Odd, || async {
            let found = self.objects.list(Some(&path)).take(count_max);
            let found: Vec<object_store::ObjectMeta> = found.try_collect().await?;
            Ok(found.iter().filter_map(|meta| below(meta, &path)).collect())
        })
        .await
    }

    async fn patiently<T, F>(&self, absence: Absence, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.attempts(self.patience, absence, attempt).await
    }

    async fn attempts<T, F>(
        &self,
        patience: Patience,
        absence: Absence,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let end = Instant::now() + patience.total;
        let mut pause = patience.pause;
        for attempts in 1u32.. {
            let until = end.min(Instant::now() + patience.attempt);
            let done = match self.check_there() {
                Ok(()) => timeout_at(until, attempt())
                    .await
                    .unwrap_or_else(|_| Err(Error::Unavailable("it did not answer in time".into()))),
                Err(away) => Err(away),
            };
            let error = match done {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let is_final = match &error {
                Error::Unavailable(_) => false,
                Error::Missing(_) => absence == Absence::Answer || attempts >= ODD_ATTEMPTS,
                Error::Damaged(_) => attempts >= ODD_ATTEMPTS,
                Error::Config(_) | Error::InUse(_) | Error::Disk { .. } => true,
            };
            if is_final || Instant::now() + pause >= end {
                return Err(error);
            }
            tracing::debug!(%error, attempts, "store: once more");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(Error::Unavailable("it was asked too often".into()))
    }
}

/// An object's size and when it was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

impl From<object_store::ObjectMeta> for Stat {
    fn from(meta: object_store::ObjectMeta) -> Self {
        Self { bytes: meta.size, modified: meta.last_modified.into() }
    }
}

impl Stat {
    /// By this node's clock; one of the future is old, for who knows.
    pub(crate) fn is_younger(&self, age: Duration) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|is| is < age)
    }
}

fn below(meta: &object_store::ObjectMeta, path: &Path) -> Option<String> {
    let rest = meta.location.as_ref().strip_prefix(path.as_ref())?;
    Some(rest.trim_start_matches('/').to_owned())
}

pub(crate) fn object_name(object: &Object) -> String {
    let hex = object.hash.hex();
    format!("objects/{}/{hex}", &hex[..2])
}

/// `digest` is one of ours: `blake3:<hex>`.
pub(crate) fn bare(digest: &str) -> &str {
    digest.strip_prefix("blake3:").unwrap_or(digest)
}

fn is_range(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ["range", "Range"].iter().any(|word| text.contains(word))
}

fn bucket(config: &StoreConfig, name: &str) -> Result<object_store::aws::AmazonS3> {
    // Retries are ours, so that one deadline holds for all.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let options = ClientOptions::new().with_connect_timeout(Duration::from_secs(5)).with_allow_http(true);
    let mut builder =
        AmazonS3Builder::from_env().with_bucket_name(name).with_retry(retry).with_client_options(options);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    builder.build().map_err(|e| Error::Config(format!("url: {e}")))
}
