//! What every test needs: a node over fakes, and short ways to ask it.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::{
    Code, Error, Result, SandboxId,
    arrow::{Chronus, Edge, ExecStream},
    exec::{ExecRequest, Exit},
    frame::{ServerFrame, Stream},
    image::{ExportQuery, ImageConfig, ImageInfo, ImportQuery, LayerKind, MergeRequest, TagRequest},
    pull::{PullProgress, PullRequest},
    snapshot::{PackReport, PackRequest},
    spec::{CreateEvent, CreateRequest, Kind, SandboxInfo, SandboxSpec},
};
use edge::{Capacity, EdgeConfig, EdgeNode, Export, Layers, Resolved};
use futures_util::StreamExt;
use image::Under;
use runtime::{LayerFiles, Runtime, fake::FakeRuntime};
use tempfile::TempDir;
use tokio::sync::watch;

/// A catalogue in memory; `base` and `tools` are there from the start.
#[derive(Default)]
pub struct FakeLayers {
    images: Mutex<BTreeMap<String, (ImageInfo, Vec<u8>)>>,
    pub given_up: std::sync::atomic::AtomicBool,
}

impl FakeLayers {
    pub fn new() -> Self {
        let layers = Self::default();
        for (name, kind) in [("base", LayerKind::Base), ("tools", LayerKind::Toolkit)] {
            layers.import(&ImportQuery::new(name, kind), &mut &b"x"[..]).unwrap();
        }
        layers
    }
    pub fn bytes_of(&self, name: &str) -> Vec<u8> {
        self.images.lock().unwrap()[name].1.clone()
    }
}

impl Layers for FakeLayers {
    fn resolve(&self, reference: &str, kind: LayerKind) -> Result<Resolved> {
        let info = self.inspect(reference)?;
        if info.kind != kind {
            return Err(Error::invalid(format!("image: `{reference}` is a {:?}", info.kind)));
        }
        let files = info.layers.iter().map(|digest| LayerFiles {
            digest: digest.clone(),
            meta: format!("/layers/{digest}").into(),
            blob: None,
        });
        Ok(Resolved { layers: files.collect(), info, parts: Vec::new() })
    }
    /// Tells of three steps, then waits for `slow` until nobody listens.
    fn pull(&self, request: &PullRequest, progress: &watch::Sender<PullProgress>) -> Result<ImageInfo> {
        let (name, version) = request.name_here()?;
        if name == "nosuch" {
            return Err(Error::not_found("no such image"));
        }
        for bytes_fetched in 1..=3 {
            progress.send_modify(|told| told.bytes_fetched = bytes_fetched);
        }
        while name == "slow" && !progress.is_closed() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if progress.is_closed() {
            self.given_up.store(true, std::sync::atomic::Ordering::SeqCst);
            return Err(Error::internal("nobody listens"));
        }
        self.import(&ImportQuery { version, ..ImportQuery::new(name, request.kind) }, &mut &b"pulled"[..])
    }
    fn import(&self, query: &ImportQuery, body: &mut dyn Read) -> Result<ImageInfo> {
        let mut bytes = Vec::new();
        body.read_to_end(&mut bytes).map_err(|e| Error::invalid(format!("body: {e}")))?;
        let info = ImageInfo {
            name: query.name.clone(),
            version: query.version.clone(),
            kind: query.kind,
            digest: format!("blake3:{}", query.name),
            layers: vec![format!("blake3:layer-{}", query.name)],
            config: ImageConfig {
                env: [("FROM".to_owned(), "image".to_owned())].into(),
                ..ImageConfig::default()
            },
            files: 1,
            size_bytes: bytes.len() as u64,
            created_ms: 0,
            built_on: None,
            in_use: 0,
            usage: Default::default(),
        };
        self.images.lock().unwrap().insert(query.name.clone(), (info.clone(), bytes));
        Ok(info)
    }
    fn pack(&self, request: &PackRequest, upper: &Path, under: Under) -> Result<PackReport> {
        let query = ImportQuery::new(&request.name, request.kind);
        let mut image = self.import(&query, &mut upper.as_os_str().as_encoded_bytes())?;
        let layer = image.layers.remove(0);
        image.layers = under.layers.into_iter().chain([layer.clone()]).collect();
        let (files, size_bytes) = (1, image.size_bytes);
        let (scrubbed, scrubbed_count) = (Vec::new(), 0);
        Ok(PackReport { image, layer, files, size_bytes, frozen_us: 0, scrubbed, scrubbed_count })
    }
    fn files(&self, digests: &[String]) -> Result<Vec<LayerFiles>> {
        let file = |digest: &String| LayerFiles {
            digest: digest.clone(),
            meta: format!("/layers/{digest}").into(),
            blob: None,
        };
        Ok(digests.iter().map(file).collect())
    }
    fn list(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.images.lock().unwrap().values().map(|(info, _)| info.clone()).collect())
    }
    fn inspect(&self, reference: &str) -> Result<ImageInfo> {
        let images = self.images.lock().unwrap();
        let found = images.get(reference).map(|(info, _)| info.clone());
        found.ok_or_else(|| Error::not_found(format!("no image `{reference}`")))
    }
    fn remove(&self, reference: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        let info = self.inspect(reference)?;
        if info.layers.iter().any(|layer| in_use(layer)) {
            return Err(Error::new(Code::Conflict, format!("sandboxes live on `{reference}`")));
        }
        self.images.lock().unwrap().remove(reference);
        Ok(())
    }
    fn export(&self, reference: &str, _: ExportQuery) -> Result<Export> {
        self.inspect(reference)?;
        let bytes = self.bytes_of(reference);
        Ok(Box::new(move |out| out.write_all(&bytes).map_err(|_| Error::internal("unread"))))
    }
    fn merge(&self, reference: &str, request: &MergeRequest) -> Result<ImageInfo> {
        self.inspect(reference).map(|image| ImageInfo { version: request.version.clone(), ..image })
    }
    fn tag(&self, reference: &str, request: &TagRequest) -> Result<ImageInfo> {
        let mut image = self.inspect(reference)?;
        let bytes = self.bytes_of(reference);
        image.name.clone_from(&request.name);
        image.version.clone_from(&request.version);
        self.images.lock().unwrap().insert(request.name.clone(), (image.clone(), bytes));
        Ok(image)
    }
    fn sweep(&self, _in_use: &dyn Fn(&str) -> bool) -> Result<usize> {
        Ok(0)
    }
}

/// The node's surroundings: they outlive an edge.
pub struct World {
    pub runtime: FakeRuntime,
    pub layers: Arc<FakeLayers>,
    pub config: EdgeConfig,
    _dir: TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let capacity = Capacity { sandboxes_max: 1000, ..Capacity::of_node(1 << 40, 1000) };
        let config = EdgeConfig::new("e1".parse().unwrap(), dir.path(), capacity);
        Self { runtime: FakeRuntime::new(), layers: Arc::new(FakeLayers::new()), config, _dir: dir }
    }

    pub async fn start(&self) -> Arc<EdgeNode> {
        let runtime: Arc<dyn Runtime> = Arc::new(self.runtime.clone());
        EdgeNode::start(self.config.clone(), HashMap::from([(Kind::Container, runtime)]), self.layers.clone())
            .await
            .unwrap()
    }

    /// Nothing of any sandbox is left: not in the runtime, not on disk, not in the books.
    pub fn assert_empty(&self, node: &EdgeNode) {
        assert_eq!(self.runtime.alive(), []);
        assert_eq!(node.load(), edge::admission::Load::default());
        assert_eq!(files(&self.config.ledger_dir), Vec::<String>::new());
        assert_eq!(files(&self.config.spool_dir), Vec::<String>::new());
    }
}

/// The names in a directory.
pub fn files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

pub fn spec() -> SandboxSpec {
    SandboxSpec::new("base")
}
pub fn named(name: &str) -> SandboxSpec {
    SandboxSpec { name: Some(name.into()), ..spec() }
}

pub async fn events(node: &EdgeNode, request: CreateRequest) -> Result<Vec<CreateEvent>> {
    Ok(node.create(request).await?.collect().await)
}

pub async fn create(node: &EdgeNode, spec: SandboxSpec) -> Result<SandboxInfo> {
    one(events(node, CreateRequest::one(spec)).await?)
}

/// The one event, as a result.
pub fn one(events: Vec<CreateEvent>) -> Result<SandboxInfo> {
    match <[CreateEvent; 1]>::try_from(events).unwrap() {
        [CreateEvent::Created { sandbox, .. }] => Ok(sandbox),
        [CreateEvent::Failed { error, .. }] => Err(error),
    }
}

pub async fn start_exec(node: &EdgeNode, id: &SandboxId, request: ExecRequest) -> Result<ExecStream> {
    node.chronus(id).await?.exec(request).await
}

pub async fn inside(node: &EdgeNode, id: &SandboxId) -> Arc<dyn Chronus> {
    node.chronus(id).await.unwrap()
}

/// All that a stream says.
#[derive(Debug, Default)]
pub struct Heard {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// (offset, bytes) of standard output.
    pub dropped: Vec<(u64, u64)>,
    pub exit: Option<Exit>,
    pub error: Option<Error>,
}

impl Heard {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Listens to the end; `from` is where standard output was attached.
pub async fn listen_from(mut stream: ExecStream, from: u64) -> Heard {
    let mut heard = Heard::default();
    let mut at = from;
    while let Some(frame) = stream.output.recv().await {
        match frame {
            ServerFrame::Started(id) => assert_eq!(id, stream.exec_id),
            ServerFrame::Output { stream: Stream::Stdout, offset, data } => {
                assert_eq!(offset, at, "no gap, no byte twice");
                at += data.len() as u64;
                heard.stdout.extend(data);
            }
            ServerFrame::Output { data, .. } => heard.stderr.extend(data),
            ServerFrame::Dropped { offset, bytes, .. } => {
                assert_eq!(offset, at);
                at += bytes;
                heard.dropped.push((offset, bytes));
            }
            ServerFrame::Exit(exit) => heard.exit = Some(exit),
            ServerFrame::Error(error) => heard.error = Some(error),
            ServerFrame::Alive => {}
        }
    }
    heard
}

pub async fn listen(stream: ExecStream) -> Heard {
    listen_from(stream, 0).await
}

pub async fn run(node: &EdgeNode, id: &SandboxId, request: ExecRequest) -> Heard {
    listen(start_exec(node, id, request).await.unwrap()).await
}

/// Waits until `test` holds; fails after a long while.
pub async fn until(what: &str, mut test: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if test().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}
