//! What the tests of the store stand on: a directory as store, an image published once for all of them, and the sums of
//! its files, to know right bytes by.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use libdsec::Sandbox;
use testkit::{Node, tree::TREE};

/// A directory of a test's own.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("dsec-store-").tempdir_in("/var/tmp").unwrap() }
    }
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }
    pub fn url(&self) -> String {
        std::fs::create_dir_all(self.path()).unwrap();
        format!("file://{}", self.path().display())
    }
    /// A configuration of this store, with `more` of its section.
    pub fn config(&self, more: &str) -> String {
        let path = self.dir.path().join("dsec.toml");
        std::fs::write(&path, format!("[store]\nurl = '{}'\n{more}\n", self.url())).unwrap();
        path.to_str().unwrap().to_owned()
    }
    /// A node that has nothing but this store.
    pub fn node(&self, more: &str) -> Node {
        Node::start_bare(&["--config", &self.config(more)], &[]).unwrap()
    }
    /// It cannot be reached from now on.
    pub fn take_away(&self) {
        std::fs::rename(self.path(), self.dir.path().join("aside")).unwrap();
    }
    pub fn bring_back(&self) {
        std::fs::rename(self.dir.path().join("aside"), self.path()).unwrap();
    }
    pub fn objects(&self) -> Vec<PathBuf> {
        objects(&self.path())
    }
}

/// The objects of a store, the smallest first.
pub fn objects(store: &Path) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(store.join("objects")).unwrap().map(|shard| shard.unwrap().path());
    let mut all: Vec<PathBuf> =
        shards.flat_map(|s| std::fs::read_dir(s).unwrap().map(|f| f.unwrap().path())).collect();
    all.sort_by_key(|path| std::fs::metadata(path).unwrap().len());
    all
}

pub async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let out = sandbox.sh(script).user("root").timeout(Duration::from_secs(120)).output().await.unwrap();
    assert!(out.success(), "{script}: {}{}", out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

/// The sums of the larger files, in any order, of those that can be read; last how many cannot.
const SUMS: &str = "find /usr /opt /srv -xdev -type f -size +32k -print0 | sort -zR | \
    xargs -0 -n 64 sha256sum 2>/tmp/errors; grep -c 'Input/output error' /tmp/errors; true";
/// As [`SUMS`], of few: each that cannot be read takes its time.
const SOME_SUMS: &str = "find /usr /opt /srv -xdev -type f -size +32k -print0 | sort -zR | head -zn 24 | \
    xargs -0 -n 8 sha256sum 2>/tmp/errors; grep -c 'Input/output error' /tmp/errors; true";
/// What [`SUMS`] needs, read before something is broken.
const WARM: &str =
    "find /srv -type f -print0 | sort -zR | head -zn 4 | xargs -0 sha256sum; grep -c x /etc/passwd; true";

pub type Sums = BTreeMap<String, String>;

/// The sums of what can be read, and how many files cannot.
pub async fn sums(sandbox: &Sandbox) -> (Sums, usize) {
    sums_by(sandbox, SUMS).await
}

/// As [`sums`], of 24 files.
pub async fn some_sums(sandbox: &Sandbox) -> (Sums, usize) {
    sums_by(sandbox, SOME_SUMS).await
}

async fn sums_by(sandbox: &Sandbox, script: &str) -> (Sums, usize) {
    let out = sandbox.sh(script).user("root").timeout(Duration::from_secs(120)).output().await.unwrap();
    let (text, errors) = (out.stdout_text(), out.stderr_text());
    let mut lines: Vec<&str> = text.lines().collect();
    let count = lines.pop().and_then(|line| line.parse().ok());
    let sums =
        lines.iter().map(|line| line.split_once("  ").unwrap()).map(|(sum, path)| (path.into(), sum.into()));
    (sums.collect(), count.unwrap_or_else(|| panic!("no count: {errors}")))
}

/// Makes sure that reads of a sandbox fail for what they read and not for what they read it with.
pub async fn warm(sandbox: &Sandbox) {
    ok(sandbox, WARM).await;
}

/// Every sum is that of the file. How many there are.
pub fn assert_right(got: &Sums, all: &Sums) -> usize {
    for (path, sum) in got {
        assert_eq!(Some(sum), all.get(path), "wrong bytes of {path}");
    }
    got.len()
}

/// The test image in a store, what it looks like, and nobody who has it.
pub struct Published {
    pub place: Place,
    pub tree: String,
    pub sums: Sums,
}

static PUBLISHED: Mutex<Option<Arc<Published>>> = Mutex::new(None);

async fn publish() -> Published {
    let place = Place::new();
    let node = Node::start_bare(&["--store", &place.url()], &[]).unwrap();
    node.import().await.unwrap();
    node.client().images().publish("debian").await.unwrap();
    let sandbox = node.sandbox().await;
    let tree = ok(&sandbox, TREE).await;
    let (sums, errors) = sums(&sandbox).await;
    assert!(errors == 0 && sums.len() > 50, "{errors} {}", sums.len());
    sandbox.stop().await.unwrap();
    node.stop().unwrap();
    Published { place, tree, sums }
}

/// A copy for a test to do with as it likes. Tests of this binary run one at a time.
pub async fn published() -> Published {
    let slot = || PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let first = slot().clone();
    let first = match first {
        Some(first) => first,
        None => {
            let first = Arc::new(publish().await);
            *slot() = Some(first.clone());
            first
        }
    };
    let place = Place::new();
    let copied = Command::new("cp").arg("-a").arg(first.place.path()).arg(place.path()).status().unwrap();
    assert!(copied.success());
    Published { place, tree: first.tree.clone(), sums: first.sums.clone() }
}

/// Removes what [`published`] keeps.
pub fn forget() {
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// Bytes fetched, of how many, once the file server has told.
pub async fn fetched(node: &Node) -> (u64, u64) {
    tokio::time::sleep(Duration::from_millis(500)).await;
    let layers = node.client().images().layers("debian").await.unwrap();
    assert!(layers.iter().all(|l| l.remote || l.blob_bytes == 0), "{layers:?}");
    (layers.iter().map(|l| l.fetched_bytes).sum(), layers.iter().map(|l| l.blob_bytes).sum())
}

/// Of the file server: the holder, and the worker that it has started.
pub fn pid_of(node: &Node, who: &str) -> u32 {
    let file = node.data().join("run").join(who);
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}
pub const HOLDER: &str = "layerd.lock";
pub const WORKER: &str = "layerd.worker";
