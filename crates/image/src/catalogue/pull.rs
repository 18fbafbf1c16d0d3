//! pull: an image comes from a registry, and what the catalogue knows of it already does not come again.
//!
//! ```text
//! calling thread:  resolve --> what is known, pinned --> layers, made in order --> publish
//! its own thread:                         \-> blobs, fetched side by side --/
//! ```
//! Invariants: a pull that fails leaves nothing; one that nobody waits for any more ends; the same image is pulled
//! once at a time, so that the second finds all that the first brought.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use api::{
    Code, Error, Result,
    image::{ImageInfo, ImportQuery},
    pull::{PullProgress, PullRequest, RESOLVE_MS_MAX, Reference},
};
use tokio::{
    runtime::Runtime,
    sync::{oneshot, watch},
    time::timeout,
};

use super::{Catalogue, disk, known::Finder, store::Scratch};
use crate::{
    import::{
        Built, Imported, Options,
        spool::Section,
        stack::{Known, KnownLayer, LayerPart, Source, Stack},
    },
    pull::{
        PULL_DEADLINE,
        blobs::Blobs,
        fetch::Fetch,
        manifest::{self, BlobPart, Resolved},
        registry::Registry,
        transport::Transport,
    },
};

/// Each has a thread, three connections, and a tree in memory.
const PULLS_MAX: usize = 8;
const RETRY_AFTER_MS: u64 = 5_000;
/// Between looks at whether another pull of the same image has ended.
const TURN_PERIOD: Duration = Duration::from_millis(50);

/// The pulls that go on.
#[derive(Default)]
pub struct Pulls {
    count: Mutex<usize>,
    /// By manifest.
    images: Mutex<BTreeSet<String>>,
}

/// What is to be told of a pull, and whether anybody listens: without a receiver the pull ends.
pub type Progress = watch::Sender<PullProgress>;

impl Catalogue {
    /// Pulls an image. Blocks: call it where that is allowed, outside of any async task.
    pub fn pull(&self, request: &PullRequest, progress: &Progress) -> Result<ImageInfo> {
        request.validate()?;
        let (name, version) = request.name_here()?;
        let query = ImportQuery { version, ..ImportQuery::new(name, request.kind) };
        let _place = self.pulls.enter()?;
        let reference: Reference = request.reference.parse()?;
        let registry = Registry::new(Transport::new()?, &reference, request)?;
        let runtime = Background::start()?;
        let resolve = manifest::resolve(&registry, &reference, request, &self.limits);
        let resolved = runtime.run(progress, Duration::from_millis(RESOLVE_MS_MAX), resolve)??;
        // Before the wait for another pull of the same: who asked shall know that there is such an image.
        progress.send_modify(|told| told.manifest = format!("sha256:{}", resolved.manifest));
        let _turn = self.pulls.turn(&resolved.manifest, progress)?;
        let info = self.fetch_and_publish(&query, &registry, &resolved, &runtime, progress)?;
        tracing::info!(
            image = info.name,
            reference = request.reference,
            manifest = resolved.manifest,
            "image pulled"
        );
        Ok(info)
    }

    fn fetch_and_publish(
        &self,
        query: &ImportQuery,
        registry: &Registry,
        resolved: &Resolved,
        runtime: &Background,
        progress: &Progress,
    ) -> Result<ImageInfo> {
        let options = Options::of(query)?;
        let pinned = self.pins.start();
        let (found, wanted) = self.plan(resolved, &options, &Finder { catalogue: self, pinned: &pinned });
        let total = resolved.blobs.len() as u32;
        let reused = total - wanted.len() as u32;
        progress.send_modify(|told| {
            (told.layers_total, told.layers_reused, told.layers_done) = (total, reused, reused);
            let mut seen = BTreeSet::new();
            told.bytes_total = wanted.iter().filter(|b| seen.insert(&b.hex)).map(|blob| blob.size).sum();
        });
        let scratch = Scratch::create(&self.dir)?;
        let blobs = Blobs::new(&self.dir);
        // A pull that was killed after it had named its layers has left their blobs, and this one asks for none of them.
        resolved.blobs.iter().for_each(|blob| blobs.take_along(&blob.hex));
        let fetch = Fetch { registry, blobs: &blobs, scratch: scratch.path(), progress };
        let stack = Stack { options: &options, limits: &self.limits, scratch: scratch.path(), known: &found };
        let layers = make(stack, resolved, &fetch, &wanted, runtime)?;
        progress.send_modify(|told| told.layers_done = total);
        let config = resolved.image.config.clone();
        self.publish(query, Imported { layers, config }, &scratch)
    }

    /// What is known of the image's layers, and what must be fetched for the others.
    fn plan(&self, resolved: &Resolved, options: &Options, finder: &Finder) -> (Found, Vec<BlobPart>) {
        let mut found = HashMap::new();
        let mut wanted = Vec::new();
        let keys = resolved.image.keys(options);
        for ((part, blob), key) in resolved.image.layers.iter().zip(&resolved.blobs).zip(keys) {
            let known = key.and_then(|key| finder.find(&key).map(|known| (key, known)));
            match known {
                Some((key, known)) => drop(found.insert(key, known)),
                None if part.is_empty_tar() => {}
                None => wanted.push(blob.clone()),
            }
        }
        (Found(Mutex::new(found)), wanted)
    }
}

/// What the plan found, given to who makes the layers: they must not find more or less than the plan did.
struct Found(Mutex<HashMap<String, KnownLayer>>);

impl Known for Found {
    fn find(&self, key: &str) -> Option<KnownLayer> {
        lock(&self.0).remove(key)
    }
}

/// Fetches on a thread of its own while layers are made on this one. Whichever fails first ends the other.
fn make(
    mut stack: Stack<'_>,
    resolved: &Resolved,
    fetch: &Fetch<'_>,
    wanted: &[BlobPart],
    runtime: &Background,
) -> Result<Vec<Built>> {
    std::thread::scope(|scope| {
        let (to, files) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            let ended = to.clone();
            let all = async {
                tokio::select! {
                    () = fetch.all(wanted, to) => {}
                    _ = stopped => {}
                }
            };
            if let Err(error) = runtime.run(fetch.progress, PULL_DEADLINE, all) {
                let _ = ended.send((String::new(), Err(error)));
            }
        };
        let thread = std::thread::Builder::new().name("pull".into()).spawn_scoped(scope, work);
        thread.map_err(disk("start a thread"))?;
        let here = HashMap::new();
        let mut source =
            Arriving { files, here, blobs: &resolved.blobs, progress: fetch.progress, opened: 0 };
        let built = stack.build(&mut source, &resolved.image);
        drop(stop);
        built.map_err(Error::from)
    })
}

/// Blobs as they arrive, for whoever makes layers of them.
struct Arriving<'a> {
    files: mpsc::Receiver<(String, Result<File>)>,
    here: HashMap<String, File>,
    blobs: &'a [BlobPart],
    progress: &'a Progress,
    opened: u32,
}

impl Source for Arriving<'_> {
    fn open(&mut self, number: usize, _: &LayerPart) -> crate::error::Result<Box<dyn Read + '_>> {
        let BlobPart { hex, size } = &self.blobs[number];
        while !self.here.contains_key(hex) {
            // Its sender ends only after an error, or when all has been sent.
            let (hex, file) = self.files.recv().map_err(|_| crate::Error::Registry(left()))?;
            self.here.insert(hex, file.map_err(crate::Error::Registry)?);
        }
        // The one before is made.
        if self.opened > 0 {
            self.progress.send_modify(|told| told.layers_done += 1);
        }
        self.opened += 1;
        let section = Section::of(&self.here[hex], *size);
        Ok(Box::new(While { section, progress: self.progress }))
    }
}

/// Ends when nobody listens any more.
struct While<'a> {
    section: Section<'a>,
    progress: &'a Progress,
}

impl Read for While<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.progress.is_closed() {
            return Err(crate::Error::Registry(left()).into_io());
        }
        self.section.read(out)
    }
}

fn left() -> Error {
    Error::new(Code::DeadlineExceeded, "the pull was given up")
}

/// One of a bounded number; ends when dropped.
struct Place<'a>(&'a Pulls);

/// The right to pull an image; ends when dropped.
struct Turn<'a>(&'a Pulls, &'a str);

impl Pulls {
    fn enter(&self) -> Result<Place<'_>> {
        let mut count = lock(&self.count);
        if *count >= PULLS_MAX {
            let message = format!("{PULLS_MAX} images are being pulled to this node already");
            return Err(Error::new(Code::NoCapacity, message).retry_after_ms(RETRY_AFTER_MS));
        }
        *count += 1;
        Ok(Place(self))
    }

    fn turn<'a>(&'a self, manifest: &'a str, progress: &Progress) -> Result<Turn<'a>> {
        while !lock(&self.images).insert(manifest.to_owned()) {
            if progress.is_closed() {
                return Err(left());
            }
            std::thread::sleep(TURN_PERIOD);
        }
        Ok(Turn(self, manifest))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.images).remove(self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A runtime of this pull alone, on whichever thread asks it: the caller's own may have one thread only.
struct Background(Option<Runtime>);

impl Background {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        Ok(Self(Some(runtime.map_err(disk("start a runtime"))?)))
    }

    /// Errors: nobody listens any more, or it takes too long.
    fn run<T>(&self, progress: &Progress, deadline: Duration, work: impl Future<Output = T>) -> Result<T> {
        let Some(runtime) = &self.0 else { return Err(left()) };
        runtime.block_on(async {
            tokio::select! {
                () = progress.closed() => Err(left()),
                done = timeout(deadline, work) => done.map_err(|_| {
                    let message = format!("the registry takes more than {} s", deadline.as_secs());
                    Error::new(Code::DeadlineExceeded, message)
                }),
            }
        })
    }
}

impl Drop for Background {
    /// A look-up of a name may still go on; nobody waits for it.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
