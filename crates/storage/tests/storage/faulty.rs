//! A store in memory that fails as it is told to.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Error,
    /// Longer than anybody waits.
    Slow,
    Cut,
    Flipped,
    Absent,
    Longer,
}

#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    /// What the next reads suffer, and how many.
    next: Mutex<(Wrong, usize)>,
    puts_left: AtomicUsize,
    /// The state of a generator, and what each call takes at most.
    jitter: Mutex<(u64, Duration)>,
}

impl Faulty {
    pub fn new() -> Self {
        Self::over(Arc::new(InMemory::new()))
    }

    pub fn over(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            next: Mutex::new((Wrong::Error, 0)),
            puts_left: AtomicUsize::new(usize::MAX),
            jitter: Mutex::new((1, Duration::ZERO)),
        }
    }

    /// From now on each call takes some time up to `most` longer.
    pub fn jitter(&self, seed: u64, most: Duration) {
        *self.jitter.lock().unwrap() = (seed | 1, most);
    }

    fn pause(&self) -> Duration {
        let mut jitter = self.jitter.lock().unwrap();
        jitter.0 = jitter.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        jitter.1 * ((jitter.0 >> 56) as u32) / 256
    }

    pub fn next(&self, wrong: Wrong, count: usize) {
        *self.next.lock().unwrap() = (wrong, count);
    }

    pub fn puts_allowed(&self, count: usize) {
        self.puts_left.store(count, Ordering::SeqCst);
    }

    fn turn(&self) -> Option<Wrong> {
        let mut next = self.next.lock().unwrap();
        next.1 = next.1.checked_sub(1)?;
        Some(next.0)
    }
}

fn failed() -> Error {
    Error::Generic { store: "faulty", source: "as it was told to".into() }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, to: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let left = self.puts_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        left.map_err(|_| failed())?;
        tokio::time::sleep(self.pause()).await;
        self.inner.put_opts(to, payload, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        tokio::time::sleep(self.pause()).await;
        if options.head {
            return self.inner.get_opts(from, options).await;
        }
        let wrong = self.turn();
        match wrong {
            Some(Wrong::Error) => return Err(failed()),
            Some(Wrong::Absent) => {
                return Err(Error::NotFound { path: from.to_string(), source: "as it was told to".into() });
            }
            Some(Wrong::Slow) => tokio::time::sleep(Duration::from_secs(30)).await,
            _ => {}
        }
        let found = self.inner.get_opts(from, options).await?;
        let (meta, attributes, range) = (found.meta.clone(), found.attributes.clone(), found.range.clone());
        let extensions = found.extensions.clone();
        let mut bytes = found.bytes().await?.to_vec();
        match wrong {
            Some(Wrong::Cut) => bytes.truncate(bytes.len() / 2),
            Some(Wrong::Flipped) => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x20;
            }
            Some(Wrong::Longer) => bytes.push(0),
            _ => {}
        }
        let body = stream::iter([Ok(Bytes::from(bytes))]).boxed();
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions })
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(to, o).await
    }
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let pause = self.pause();
        let late = locations.then(move |location| async move {
            tokio::time::sleep(pause).await;
            location
        });
        self.inner.delete_stream(late.boxed())
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
