//! `kill -9` of the server at moments of its work on images: what was acknowledged is there, what is there is whole, and
//! nothing else is.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use libdsec::{Client, Code, ImportQuery, LayerKind, MergeRequest, PackRequest, SandboxSpec};
use tar::{Builder, Header};
use testkit::{Node, tests};

const ROUNDS: u64 = 20;
/// Layers of an image that is merged.
const LAYERS: usize = 3;
/// Of the server, more than after its first start: idle connections, pooled sandboxes.
const OPEN_MORE_MAX: usize = 64;

fn main() -> ExitCode {
    testkit::suite::run(1, tests![twenty_kills_at_work_on_images])
}

/// What the server has said, by name: Some: it is there; None: it is gone.
type Told = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// Noise of a seed: different seeds make different layers.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    next.take(bytes).collect()
}

fn layer(seed: u64, name: &str) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (name, bytes) in [(name.to_owned(), 300_000), (format!("{name}-more"), 5000)] {
        let data = noise(seed, bytes);
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, &data[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

/// As `docker save` writes it.
fn archive(seed: u64, to: &Path) {
    let mut tar = Builder::new(fs::File::create(to).unwrap());
    let mut add = |name: &str, data: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data).unwrap();
    };
    let names: Vec<String> = (0..LAYERS).map(|n| format!("{n}/layer.tar")).collect();
    add(
        "manifest.json",
        serde_json::json!([{"Config": "config.json", "Layers": names}]).to_string().as_bytes(),
    );
    add("config.json", br#"{"config": {}, "rootfs": {"type": "layers", "diff_ids": []}}"#);
    names.iter().enumerate().for_each(|(n, name)| add(name, &layer(seed + n as u64, &format!("f{n}"))));
    tar.finish().unwrap();
}

/// One who works on images until the server does not answer any more.
struct Worker {
    client: Client,
    told: Told,
    done: Arc<AtomicU32>,
    /// Of this worker and round.
    seed: u64,
    archive: std::path::PathBuf,
}

impl Worker {
    fn tell(&self, name: &str, digest: Option<String>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.told.lock().unwrap().insert(name.to_owned(), digest);
    }

    /// Nobody knows what is there while it is asked for.
    fn asks(&self, name: &str) {
        self.told.lock().unwrap().remove(name);
    }

    async fn imports_merges_and_removes(self) -> Result<(), libdsec::Error> {
        let images = self.client.images();
        for n in 0.. {
            let name = format!("i{}-{n}", self.seed);
            archive(self.seed * 1000 + n * 10, &self.archive);
            self.asks(&format!("{name}:latest"));
            let info =
                images.import_path(&self.archive, ImportQuery::new(&name, LayerKind::Base), |_| ()).await?;
            self.tell(&format!("{name}:latest"), Some(info.digest));
            self.asks(&format!("{name}:merged"));
            let merged = images.merge(&name, MergeRequest::new("merged")).await?;
            self.tell(&format!("{name}:merged"), Some(merged.digest));
            self.asks(&format!("{name}:latest"));
            images.remove(&name).await?;
            self.tell(&format!("{name}:latest"), None);
        }
        Ok(())
    }

    async fn packs(self, sandbox: String) -> Result<(), libdsec::Error> {
        let sandbox = self.client.get(&sandbox).await?;
        for n in 0.. {
            sandbox.sh(format!("head -c 200000 /dev/urandom > /home/user/f{n}")).output().await?;
            // One name, replaced again and again.
            let name = format!("p{}", self.seed);
            self.asks(&format!("{name}:latest"));
            let report = sandbox.pack_diff(PackRequest::new(&name)).await?;
            self.tell(&format!("{name}:latest"), Some(report.image.digest));
        }
        Ok(())
    }
}

async fn twenty_kills_at_work_on_images(node: &Node) {
    let sandbox = node.sandbox().await;
    let told: Told = Arc::default();
    let done = Arc::new(AtomicU32::new(0));
    let debian = node.client().images().inspect("debian").await.unwrap();
    told.lock().unwrap().insert("debian:latest".into(), Some(debian.digest));
    let before = open_files(node);
    for round in 0..ROUNDS {
        let worker = |number: u64| Worker {
            client: node.client(),
            told: told.clone(),
            done: done.clone(),
            seed: round * 10 + number,
            archive: node.scratch().join(format!("archive-{number}.tar")),
        };
        let workers = [
            tokio::spawn(worker(1).imports_merges_and_removes()),
            tokio::spawn(worker(2).imports_merges_and_removes()),
            tokio::spawn(worker(3).packs(sandbox.id().to_string())),
        ];
        // Moments spread over the first half second: from the first bytes of an import to the third or fourth round.
        tokio::time::sleep(Duration::from_millis(20 + (round * 173) % 500)).await;
        node.kill9().unwrap();
        for worker in workers {
            let error = worker.await.unwrap().unwrap_err();
            assert!(matches!(error.code, Code::Unreachable | Code::Internal), "round {round}: {error}");
        }
        node.up().unwrap();
        assert_consistent(node, &told, round).await;
    }
    assert!(done.load(Ordering::Relaxed) >= ROUNDS as u32, "hardly anything was acknowledged");
    node.client().get(sandbox.id().as_str()).await.unwrap().stop().await.unwrap();
    clean_up(node).await;
    let after = open_files(node);
    assert!(after <= before + OPEN_MORE_MAX, "{before} files were open, now {after}");
}

/// Of the server.
fn open_files(node: &Node) -> usize {
    fs::read_dir(format!("/proc/{}/fd", node.pid().unwrap())).unwrap().count()
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

async fn assert_consistent(node: &Node, told: &Told, round: u64) {
    let volume = node.data().join("volume");
    let listed = node.client().images().list().await.unwrap();
    let found: BTreeMap<String, String> =
        listed.iter().map(|info| (format!("{}:{}", info.name, info.version), info.digest.clone())).collect();
    for (name, digest) in told.lock().unwrap().iter() {
        assert_eq!(found.get(name), digest.as_ref(), "round {round}: {name}, as acknowledged");
    }
    let on_disk: usize =
        names(&volume.join("images")).iter().map(|n| names(&volume.join("images").join(n)).len()).sum();
    assert_eq!(on_disk, listed.len(), "round {round}: an image was left out");
    assert_eq!(names(&volume.join("tmp")), BTreeSet::new(), "round {round}");
    let on_disk = names(&volume.join("layers"));
    for layer in listed.iter().flat_map(|info| &info.layers) {
        assert!(on_disk.contains(layer.trim_start_matches("blake3:")), "round {round}: {layer}");
    }
    // What a kill has torn cannot be read: a new image's files are read through a sandbox.
    let Some(newest) = listed.iter().filter(|info| info.name.starts_with('p')).max_by_key(|i| i.created_ms)
    else {
        return;
    };
    let spec = SandboxSpec::new(format!("{}:{}", newest.name, newest.version));
    let sandbox = node.sandbox_with(spec).await;
    let out = sandbox.sh("cat /home/user/f* /usr/bin/python3* | wc -c").output().await.unwrap();
    assert!(out.success() && out.stderr_text().is_empty(), "round {round}: {}", out.stderr_text());
    sandbox.stop().await.unwrap();
}

/// All images but the one that others use; then their layers are gone, too.
async fn clean_up(node: &Node) {
    let images = node.client().images();
    for info in images.list().await.unwrap().into_iter().filter(|info| info.name != "debian") {
        images.remove(&format!("{}:{}", info.name, info.version)).await.unwrap();
    }
    // What replaced images left is swept at a start.
    node.restart_kill9().unwrap();
    let volume = node.data().join("volume");
    assert_eq!(names(&volume.join("images")), BTreeSet::from(["debian".to_owned()]));
    assert_eq!(names(&volume.join("layers")).len(), 1, "the layer of debian alone");
    assert_eq!(names(&volume.join("blobs")), BTreeSet::new());
}
