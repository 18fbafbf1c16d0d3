//! Chunks over a store that can be watched, held and damaged, against the true bytes.

use std::{
    collections::HashSet,
    fmt, fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};
use proptest::prelude::*;
use storage::{
    Store, publish,
    store::Patience,
    table::{CHUNK_BYTES, Value},
};
use tokio::sync::watch;

use super::{Ahead, Chunks, Wanted, runs};
use crate::{
    cache::Cache,
    layers::{Layer, Layers},
    prefetch,
};

/// A store in memory that counts reads and lets those of held objects wait.
#[derive(Debug)]
struct Watched {
    inner: InMemory,
    reads: Mutex<Vec<(String, u64, u64)>>,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    held: watch::Sender<HashSet<String>>,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            reads: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
            held: watch::Sender::new(HashSet::new()),
        })
    }

    fn store(self: &Arc<Self>) -> Store {
        let (total, attempt) = (Duration::from_secs(20), Duration::from_secs(10));
        let patience = Patience { total, attempt, pause: Duration::from_millis(1) };
        Store::over(self.clone(), Path::default(), patience)
    }

    /// No byte of an object was read twice.
    fn assert_once(&self) {
        let mut reads = self.reads.lock().unwrap().clone();
        reads.sort();
        for pair in reads.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "read twice: {pair:?}");
        }
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("watched")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, to: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(to, payload, options).await
    }
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        if let Some(GetRange::Bounded(range)) = &options.range {
            self.reads.lock().unwrap().push((from.to_string(), range.start, range.end));
            let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            self.in_flight_max.fetch_max(now, Ordering::SeqCst);
            let _ = self.held.subscribe().wait_for(|held| !held.contains(from.as_ref())).await;
            tokio::task::yield_now().await;
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        self.inner.get_opts(from, options).await
    }
    async fn put_multipart_opts(
        &self,
        to: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(to, o).await
    }
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
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

/// A published layer of noise, and a node's directory with its manifest.
struct World {
    store: Arc<Watched>,
    blob: Vec<u8>,
    dir: tempfile::TempDir,
    hex: String,
}

impl World {
    async fn new(chunks: usize) -> Self {
        let (store, dir) = (Watched::new(), tempfile::tempdir().unwrap());
        let mut state = 7u64;
        let noise = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let blob: Vec<u8> = (0..chunks * CHUNK_BYTES - 5000).map(noise).collect();
        let mut digest = blake3::Hasher::new();
        digest.update(b"meta").update(blake3::hash(&blob).as_bytes());
        let hex = digest.finalize().to_hex().to_string();
        let (meta_path, blob_path) = (dir.path().join("meta"), dir.path().join("blob"));
        fs::write(&meta_path, "meta").unwrap();
        fs::write(&blob_path, &blob).unwrap();
        let layer = publish::Layer {
            digest: format!("blake3:{hex}"),
            files: 1,
            meta_bytes: 4,
            blob_bytes: blob.len() as u64,
            data_bytes: blob.len() as u64,
            meta: meta_path,
            blob: Some(blob_path),
        };
        store.store().put_layer(&layer).await.unwrap();
        let manifest = store.inner.get(&Path::from(format!("layers/{hex}.json"))).await.unwrap();
        fs::create_dir_all(dir.path().join("layers").join(&hex)).unwrap();
        let at = dir.path().join("layers").join(&hex).join(crate::MANIFEST);
        fs::write(at, manifest.bytes().await.unwrap()).unwrap();
        Self { store, blob, dir, hex }
    }

    /// As a worker that has just started has them.
    fn worker(&self, cache_bytes_max: u64) -> (Arc<Chunks>, Arc<Layer>) {
        let cache = Cache::open(&self.dir.path().join("cache"), cache_bytes_max).unwrap();
        let layers = Layers::new(&self.dir.path().join("layers"), Default::default());
        (Arc::new(Chunks::new(self.store.store(), cache)), layers.named(&self.hex).unwrap())
    }

    fn object(&self, layer: &Layer, chunk: usize) -> String {
        let hex = layer.manifest.spot(chunk).unwrap().object.hash.hex();
        format!("objects/{}/{hex}", &hex[..2])
    }

    fn cached(&self) -> Vec<std::path::PathBuf> {
        let shards = fs::read_dir(self.dir.path().join("cache")).unwrap().flatten();
        let mut all: Vec<_> =
            shards.flat_map(|s| fs::read_dir(s.path()).unwrap().flatten()).map(|f| f.path()).collect();
        all.sort();
        all
    }
}

fn joined(pieces: Vec<Bytes>) -> Vec<u8> {
    pieces.concat()
}

const ROOM: u64 = 1 << 30;

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_ask_once_for_each_chunk_and_few_at_once() {
    let world = Arc::new(World::new(150).await);
    let (chunks, layer) = world.worker(ROOM);
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..32usize {
        let (world, chunks, layer) = (world.clone(), chunks.clone(), layer.clone());
        readers.spawn(async move {
            const READ: usize = 400 << 10;
            let count = world.blob.len().div_ceil(READ);
            for nth in 0..count {
                let start = (nth * 7 + reader * 11) % count * READ;
                let bytes = joined(chunks.read(&layer, start as u64, READ as u32).await.unwrap());
                assert!(bytes == world.blob[start..(start + READ).min(world.blob.len())]);
            }
        });
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
    world.store.assert_once();
    let most = world.store.in_flight_max.load(Ordering::SeqCst);
    assert!((2..=super::FETCHES_IN_FLIGHT).contains(&most), "{most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_goes_before_the_prefetch() {
    let world = World::new(150).await;
    let (chunks, layer) = world.worker(ROOM);
    let trace: Vec<u32> = (0..64).rev().collect();
    chunks.store().put_trace(&layer.manifest, &trace).await.unwrap();
    let held = HashSet::from([world.object(&layer, 0), world.object(&layer, 32)]);
    world.store.held.send_replace(held);
    let ahead = tokio::spawn(prefetch::run(chunks.clone(), layer.clone()));
    while world.store.in_flight.load(Ordering::SeqCst) < prefetch::RUNS_IN_FLIGHT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let start = 100 * CHUNK_BYTES;
    let bytes = joined(chunks.read(&layer, start as u64, 4096).await.unwrap());
    assert!(bytes == world.blob[start..start + 4096], "it waited for nothing");
    // One for which a run is under way has the same flight.
    let same = {
        let (chunks, layer) = (chunks.clone(), layer.clone());
        tokio::spawn(async move { chunks.read(&layer, 63 * CHUNK_BYTES as u64, 4096).await })
    };
    assert_eq!(world.store.in_flight.load(Ordering::SeqCst), prefetch::RUNS_IN_FLIGHT);
    world.store.held.send_replace(HashSet::new());
    ahead.await.unwrap();
    assert!(joined(same.await.unwrap().unwrap()) == world.blob[63 * CHUNK_BYTES..63 * CHUNK_BYTES + 4096]);
    world.store.assert_once();
    for index in 0..64 {
        assert!(chunks.cache.has(&layer.manifest.spot(index).unwrap().chunk.value), "{index}");
    }
    assert_eq!(layer.counts().prefetched_bytes, 64 * CHUNK_BYTES as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefetch_ends_where_the_cache_would_drop_something() {
    let world = World::new(80).await;
    let (chunks, layer) = world.worker(8 << 20);
    let trace: Vec<u32> = (0..64).collect();
    chunks.store().put_trace(&layer.manifest, &trace).await.unwrap();
    prefetch::run(chunks.clone(), layer.clone()).await;
    let bytes: u64 = world.cached().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    // Each of the runs that were under way saw room for itself.
    let most = (8 << 20) / 10 * 8 + (prefetch::RUNS_IN_FLIGHT * 8 * (CHUNK_BYTES + 4096)) as u64;
    assert!((1 << 20..=most).contains(&bytes) && bytes < 64 * CHUNK_BYTES as u64, "{bytes}");
    let bytes = joined(chunks.read(&layer, 63 * CHUNK_BYTES as u64, 4096).await.unwrap());
    assert!(
        bytes == world.blob[63 * CHUNK_BYTES..63 * CHUNK_BYTES + 4096],
        "nobody waits for a flight that was given up"
    );
}

#[derive(Debug, Clone)]
enum Step {
    Read(prop::sample::Index, u32),
    Prefetch,
    DamageCached(prop::sample::Index, u8),
    RemoveCached(prop::sample::Index),
    DamageStore(prop::sample::Index),
    CutStore(prop::sample::Index),
    Restore,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        6 => (at(), 1..700_000u32).prop_map(|(at, size)| Step::Read(at, size)),
        1 => Just(Step::Prefetch),
        2 => (at(), 1..=255u8).prop_map(|(at, flip)| Step::DamageCached(at, flip)),
        1 => at().prop_map(Step::RemoveCached),
        1 => at().prop_map(Step::DamageStore),
        1 => at().prop_map(Step::CutStore),
        2 => Just(Step::Restore),
        2 => Just(Step::Restart),
    ]
}

/// Whatever happens to what is cached and stored: a read is right, or an error, and an error only where the store is bad.
async fn follow(world: &World, steps: &[Step]) {
    const SMALL: u64 = 2 << 20;
    let (mut chunks, mut layer) = world.worker(SMALL);
    let sound = |chunk: usize| {
        let path = Path::from(world.object(&layer, chunk));
        async move { (path.clone(), world.store.inner.get(&path).await.unwrap().bytes().await.unwrap()) }
    };
    let objects = [sound(0).await, sound(32).await];
    let mut is_sound = true;
    for step in steps {
        // What goes on in the background is done: the files are as they are.
        while Arc::strong_count(&chunks) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match step {
            Step::Read(at, size) => {
                let start = at.index(world.blob.len());
                let end = (start + *size as usize).min(world.blob.len());
                match chunks.read(&layer, start as u64, *size).await {
                    Ok(pieces) => assert!(joined(pieces) == world.blob[start..end], "wrong bytes at {start}"),
                    Err(()) => assert!(!is_sound, "an error at {start} without a cause"),
                }
            }
            Step::Prefetch => prefetch::run(chunks.clone(), layer.clone()).await,
            Step::DamageCached(at, flip) => {
                let all = world.cached();
                if !all.is_empty() {
                    let path = &all[at.index(all.len())];
                    let mut bytes = fs::read(path).unwrap();
                    let middle = at.index(bytes.len());
                    bytes[middle] ^= flip;
                    fs::write(path, bytes).unwrap();
                }
            }
            Step::RemoveCached(at) => {
                let all = world.cached();
                if !all.is_empty() {
                    fs::remove_file(&all[at.index(all.len())]).unwrap();
                }
            }
            Step::DamageStore(at) | Step::CutStore(at) => {
                let (path, bytes) = &objects[at.index(2)];
                let bad = match step {
                    Step::CutStore(_) => bytes.slice(..at.index(bytes.len())),
                    _ => bytes.iter().map(|b| b ^ 1).collect::<Vec<u8>>().into(),
                };
                world.store.inner.put(path, bad.into()).await.unwrap();
                is_sound = false;
            }
            Step::Restore => {
                for (path, bytes) in &objects {
                    world.store.inner.put(path, bytes.clone().into()).await.unwrap();
                }
                // What goes wrong still is from before.
                (chunks, layer) = world.worker(SMALL);
                is_sound = true;
            }
            Step::Restart => (chunks, layer) = world.worker(SMALL),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_read_is_right_or_an_error(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new(40).await;
            let (chunks, layer) = world.worker(ROOM);
            let trace: Vec<u32> = (0..40).step_by(3).collect();
            chunks.store().put_trace(&layer.manifest, &trace).await.unwrap();
            follow(&world, &steps).await;
        });
    }
}

fn wanted(index: usize) -> Wanted {
    Wanted { index, value: Value([0; 32]), tell: watch::channel(None).0 }
}

#[test]
fn a_run_is_of_neighbours_in_one_batch() {
    let all = [0, 1, 3, 30, 31, 32, 33].map(wanted).into();
    let lengths: Vec<usize> = runs(all).iter().map(Vec::len).collect();
    assert_eq!(lengths, [2, 1, 2, 2]);
}

#[test]
fn who_reads_on_is_read_ahead_of() {
    let mut ahead = Ahead::default();
    let windows: Vec<usize> = (0..7).map(|n| ahead.turn(n, n)).collect();
    assert_eq!(windows, [1, 2, 4, 8, 16, 16, 16]);
    assert_eq!(ahead.turn(6, 6), 16, "the rest of the same chunk");
    assert_eq!((ahead.turn(90, 90), ahead.turn(40, 40), ahead.turn(41, 41)), (0, 0, 1));
}
