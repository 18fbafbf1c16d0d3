//! An edge, its catalogue and a chronus, in memory. Commands are few and their effects are real: an exec is a log
//! that is appended to, files are kept, ports are TCP ports of this machine.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use api::{
    Code, EdgeId, Error, ExecId, RequestId, Result, SandboxId,
    arrow::{
        BoxStream, ByteStream, Chronus, Edge, ExecStream, FRAMES_IN_FLIGHT, FileBody, Images, PortStream,
    },
    exec::{AttachQuery, Command, ExecInfo, ExecRequest, Exit, ExitReason, SignalRequest, Stdin},
    file::*,
    frame::{ClientFrame, ServerFrame, Stream},
    image::{ExportQuery, ImageConfig, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullProgress, PullRequest},
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxInfo, SandboxSpec, TtlRequest},
    state::State,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{mpsc, watch},
};

pub const FLOOD_CHUNK: usize = 256 << 10;

#[derive(Default)]
struct Log {
    stdout: BytesMut,
    exit: Option<Exit>,
}

struct Exec {
    command: Command,
    log: watch::Sender<Log>,
    input: mpsc::Sender<ClientFrame>,
}

#[derive(Default)]
pub struct Inside {
    execs: Mutex<BTreeMap<ExecId, Arc<Exec>>>,
    pub files: Mutex<BTreeMap<String, Bytes>>,
    /// Bytes that `flood` has handed over.
    pub flooded: AtomicU64,
    /// Streams attached now.
    pub attached: Arc<AtomicUsize>,
    /// Frames that came from clients and are no stdin.
    pub control: Mutex<Vec<ClientFrame>>,
}

fn exited(code: i32) -> Exit {
    Exit { code, reason: ExitReason::Exited, signal: None, duration_ms: 1 }
}

impl Exec {
    fn write(&self, bytes: &[u8]) {
        self.log.send_modify(|log| log.stdout.extend_from_slice(bytes));
    }
    fn end(&self, exit: Exit) {
        self.log.send_if_modified(|log| {
            let first = log.exit.is_none();
            log.exit.get_or_insert(exit);
            first
        });
    }
}

/// What the commands do.
async fn run(
    inside: Arc<Inside>,
    exec: Arc<Exec>,
    argv: Vec<String>,
    stdin: Stdin,
    mut input: mpsc::Receiver<ClientFrame>,
) {
    if let Stdin::Data(data) = &stdin {
        exec.write(&data.0);
    }
    match argv[0].as_str() {
        "echo" => {
            exec.write(argv[1..].join(" ").as_bytes());
            exec.write(b"\n");
        }
        "cat" if stdin == Stdin::Stream => {
            while let Some(frame) = input.recv().await {
                match frame {
                    ClientFrame::Stdin(bytes) => exec.write(&bytes),
                    ClientFrame::StdinClose => break,
                    other => inside.control.lock().unwrap().push(other),
                }
            }
            exec.write(b"<eof>");
        }
        "sleep" => {
            let _ = exec.log.subscribe().wait_for(|log| log.exit.is_some()).await;
        }
        _ => {}
    }
    exec.end(exited(argv.get(9).map_or(0, |_| 1)));
}

impl Inside {
    fn find(&self, id: &ExecId) -> Result<Arc<Exec>> {
        self.execs.lock().unwrap().get(id).cloned().ok_or_else(|| Error::not_found(format!("no exec `{id}`")))
    }

    /// Frames of a log from an offset on.
    fn attach(&self, exec_id: ExecId, exec: &Exec, from: u64) -> ExecStream {
        let (to, output) = mpsc::channel(FRAMES_IN_FLIGHT);
        let mut log = exec.log.subscribe();
        let attached = self.attached.clone();
        attached.fetch_add(1, SeqCst);
        tokio::spawn(async move {
            let mut at = from as usize;
            loop {
                let (data, exit) = {
                    let log = log.borrow_and_update();
                    (Bytes::copy_from_slice(&log.stdout[at.min(log.stdout.len())..]), log.exit)
                };
                if !data.is_empty() {
                    let offset = at as u64;
                    at += data.len();
                    if to.send(ServerFrame::Output { stream: Stream::Stdout, offset, data }).await.is_err() {
                        break;
                    }
                }
                if let Some(exit) = exit {
                    let _ = to.send(ServerFrame::Exit(exit)).await;
                    break;
                }
                tokio::select! {
                    changed = log.changed() => if changed.is_err() { break },
                    () = to.closed() => break,
                }
            }
            attached.fetch_sub(1, SeqCst);
        });
        ExecStream { exec_id, input: exec.input.clone(), output }
    }

    /// A command that writes as fast as it is read.
    fn flood(self: &Arc<Self>, bytes: u64) -> ExecStream {
        let (to, output) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (input, _) = mpsc::channel(1);
        let inside = self.clone();
        tokio::spawn(async move {
            let chunk = Bytes::from(vec![b'y'; FLOOD_CHUNK]);
            let mut offset = 0;
            while offset < bytes {
                let data = chunk.slice(..(bytes - offset).min(FLOOD_CHUNK as u64) as usize);
                let next = offset + data.len() as u64;
                if to.send(ServerFrame::Output { stream: Stream::Stdout, offset, data }).await.is_err() {
                    return;
                }
                inside.flooded.fetch_add(next - offset, SeqCst);
                offset = next;
            }
            let _ = to.send(ServerFrame::Exit(exited(0))).await;
        });
        ExecStream { exec_id: ExecId::new(), input, output }
    }

    fn info(&self, path: &str) -> Result<FileInfo> {
        let files = self.files.lock().unwrap();
        let bytes = files.get(path).ok_or_else(|| Error::not_found(format!("{path}: no such file")))?;
        Ok(FileInfo {
            name: path.rsplit('/').next().unwrap_or_default().to_owned().into(),
            path: path.to_owned().into(),
            kind: FileKind::File,
            size_bytes: bytes.len() as u64,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            modified_ms: 7,
            symlink_target: None,
        })
    }
}

pub struct FakeChronus(pub Arc<Inside>);

#[async_trait]
impl Chronus for FakeChronus {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        let argv = match &request.command {
            Command::Argv(argv) => argv.clone(),
            Command::Shell(text) => vec!["echo".into(), text.clone()],
        };
        match argv[0].as_str() {
            "flood" => return Ok(self.0.flood(argv[1].parse().unwrap())),
            "panic" => panic!("as asked"),
            "busy" => return Err(Error::new(Code::NoCapacity, "full").retry_after_ms(2500)),
            _ => {}
        }
        let (input, from_client) = mpsc::channel(FRAMES_IN_FLIGHT);
        let exec = Arc::new(Exec { command: request.command, log: watch::Sender::default(), input });
        let id = ExecId::new();
        self.0.execs.lock().unwrap().insert(id.clone(), exec.clone());
        tokio::spawn(run(self.0.clone(), exec.clone(), argv, request.stdin, from_client));
        Ok(self.0.attach(id, &exec, 0))
    }
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        let exec = self.0.find(&exec_id)?;
        Ok(self.0.attach(exec_id, &exec, from.stdout_offset))
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        let ids: Vec<_> = self.0.execs.lock().unwrap().keys().cloned().collect();
        let mut all = Vec::new();
        for id in ids {
            all.push(self.exec_inspect(id).await?);
        }
        Ok(all)
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        let exec = self.0.find(&exec_id)?;
        let log = exec.log.borrow();
        Ok(ExecInfo {
            exec_id,
            command: exec.command.clone(),
            started_ms: 1,
            exit: log.exit,
            stdout_bytes: log.stdout.len() as u64,
            stderr_bytes: 0,
            pty: false,
        })
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        let (code, signal) = (128 + request.signal, Some(request.signal));
        self.0.find(&exec_id)?.end(Exit { code, reason: ExitReason::Signal, signal, duration_ms: 1 });
        Ok(())
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        let mut info = self.0.info(&query.path)?;
        let bytes = self.0.files.lock().unwrap()[&query.path].clone();
        let start = (query.offset as usize).min(bytes.len());
        let end = query.length.map_or(bytes.len(), |length| (start + length as usize).min(bytes.len()));
        let mut part = bytes.slice(start..end);
        match info.name.to_text().as_str() {
            // As in /proc: nothing by stat, something by read.
            "proc" => info.size_bytes = 0,
            "shrunk" => part.truncate(part.len() / 2),
            "grown" => info.size_bytes /= 2,
            _ => {}
        }
        let chunks: Vec<_> = part.chunks(64 << 10).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        Ok(FileBody { info, body: Box::pin(stream::iter(chunks)) })
    }
    async fn file_write(&self, query: WriteQuery, mut body: ByteStream) -> Result<FileInfo> {
        if query.path == "/stuck" {
            std::future::pending::<()>().await;
        }
        let mut whole = BytesMut::new();
        while let Some(bytes) = body.next().await {
            whole.extend_from_slice(&bytes?);
        }
        self.0.files.lock().unwrap().insert(query.path.clone(), whole.freeze());
        self.0.info(&query.path)
    }
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        self.0.info(&query.path)
    }
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        let paths: Vec<_> = self
            .0
            .files
            .lock()
            .unwrap()
            .keys()
            .filter(|path| path.starts_with(&query.path))
            .cloned()
            .collect();
        paths.iter().map(|path| self.0.info(path)).collect()
    }
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        self.0.files.lock().unwrap().insert(request.path.clone(), Bytes::new());
        Ok(FileInfo { kind: FileKind::Directory, ..self.0.info(&request.path)? })
    }
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        self.0.info(&request.from)?;
        {
            let mut files = self.0.files.lock().unwrap();
            let bytes = files.remove(&request.from).unwrap();
            files.insert(request.to.clone(), bytes);
        }
        self.0.info(&request.to)
    }
    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        self.0.info(&query.path)?;
        self.0.files.lock().unwrap().remove(&query.path);
        Ok(())
    }
    async fn file_watch(&self, _: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        Ok(Box::pin(stream::iter([
            Ok(WatchEvent { kind: WatchKind::Created, name: vec![0xff].into() }),
            Ok(WatchEvent { kind: WatchKind::Removed, name: "b\n".into() }),
            Err(Error::new(Code::SandboxGone, "ended")),
        ])))
    }
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        let broken = query.path == "/broken";
        let items =
            [Ok(Bytes::from("tar")), if broken { Err(Error::internal("x")) } else { Ok(Bytes::from("end")) }];
        Ok(Box::pin(stream::iter(items)))
    }
    async fn tar_put(&self, _: TarQuery, body: ByteStream) -> Result<TarReport> {
        let bytes = body.fold(0, |sum, bytes| async move { sum + bytes.unwrap().len() as u64 }).await;
        Ok(TarReport { entries: 1, bytes })
    }

    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .map_err(|_| Error::not_found(format!("nothing listens on port {port}")))?;
        let (mut read, mut write) = stream.into_split();
        let (input, mut from_client) = mpsc::channel::<Bytes>(2);
        let (to_client, output) = mpsc::channel(2);
        tokio::spawn(async move {
            while let Some(bytes) = from_client.recv().await {
                if write.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            let _ = write.shutdown().await;
        });
        tokio::spawn(async move {
            let mut buffer = vec![0; 32 << 10];
            while let Ok(count @ 1..) = read.read(&mut buffer).await {
                if to_client.send(Ok(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                    return;
                }
            }
        });
        Ok(PortStream { input, output })
    }
}

#[derive(Default)]
pub struct FakeEdge {
    pub inside: Arc<Inside>,
    sandboxes: Mutex<BTreeMap<SandboxId, SandboxInfo>>,
    images: Mutex<BTreeMap<String, ImageInfo>>,
    pub request_ids: Mutex<Vec<Option<RequestId>>>,
}

impl FakeEdge {
    fn get(&self, id: &SandboxId) -> Result<SandboxInfo> {
        let sandboxes = self.sandboxes.lock().unwrap();
        sandboxes.get(id).cloned().ok_or_else(|| Error::not_found(format!("no sandbox `{id}`")))
    }
}

#[async_trait]
impl Edge for FakeEdge {
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        if request.spec.image == "nosuch" {
            return Err(Error::not_found("no image `nosuch`"));
        }
        let edge: EdgeId = "e1".parse().unwrap();
        let mut events = Vec::new();
        for index in 0..request.count {
            if index % 3 == 2 {
                events.push(CreateEvent::Failed { index, error: Error::new(Code::NoCapacity, "full") });
                continue;
            }
            let sandbox = SandboxInfo {
                id: SandboxId::new(&edge),
                state: State::Running,
                reason: None,
                spec: request.spec.clone(),
                project: api::spec::root_project(),
                layers: vec![],
                created_ms: 1,
                expires_ms: 2,
                execs_live: 0,
            };
            self.sandboxes.lock().unwrap().insert(sandbox.id.clone(), sandbox.clone());
            events.push(CreateEvent::Created { index, sandbox });
        }
        if request.spec.image == "dies" {
            // Something goes wrong in the middle of the answer.
            let cut = events.drain(..1).collect::<Vec<_>>();
            return Ok(Box::pin(stream::iter(cut).chain(stream::once(async { panic!("as asked") }))));
        }
        Ok(Box::pin(stream::iter(events)))
    }
    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        self.request_ids.lock().unwrap().push(rpc::request_id());
        let all = self.sandboxes.lock().unwrap().values().cloned().collect::<Vec<_>>();
        Ok(all.into_iter().filter(|s| query.name.is_none() || s.spec.name == query.name).collect())
    }
    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.get(id)
    }
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.get(id)?;
        self.sandboxes.lock().unwrap().remove(id);
        Ok(())
    }
    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        let mut info = self.get(id)?;
        info.expires_ms = request.ttl_ms;
        Ok(info)
    }
    async fn checkpoint(&self, id: &SandboxId, request: CheckpointRequest) -> Result<Checkpoint> {
        self.get(id)?;
        Ok(Checkpoint { name: request.name.unwrap_or_else(|| "made-up".into()), created_ms: 7 })
    }
    async fn checkpoint_list(&self, id: &SandboxId) -> Result<Vec<Checkpoint>> {
        self.get(id)?;
        Ok(vec![Checkpoint { name: "a b".into(), created_ms: 7 }])
    }
    async fn checkpoint_remove(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.get(id)?;
        if name == "a b" { Ok(()) } else { Err(Error::not_found(format!("no checkpoint `{name}`"))) }
    }
    async fn rollback(&self, id: &SandboxId, _request: RollbackRequest) -> Result<SandboxInfo> {
        self.inspect(id).await
    }
    async fn fork(&self, id: &SandboxId, request: ForkRequest) -> Result<BoxStream<CreateEvent>> {
        let spec = self.inspect(id).await?.spec;
        let spec = SandboxSpec { name: None, ..spec };
        self.create(CreateRequest {
            idempotency_key: request.idempotency_key,
            ..CreateRequest::many(request.count, spec)
        })
        .await
    }
    async fn pack_diff(&self, id: &SandboxId, _request: PackRequest) -> Result<PackReport> {
        self.inspect(id).await?;
        Err(Error::new(Code::Unsupported, "the fake has no disk"))
    }
    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        self.get(id)?;
        Ok(Arc::new(FakeChronus(self.inside.clone())))
    }
}

#[async_trait]
impl Images for FakeEdge {
    async fn import(&self, query: ImportQuery, mut body: ByteStream) -> Result<ImageInfo> {
        let mut size_bytes = 0;
        while let Some(bytes) = body.next().await {
            size_bytes += bytes?.len() as u64;
        }
        let image = ImageInfo {
            name: query.name,
            version: query.version,
            kind: query.kind,
            digest: "blake3:00".into(),
            layers: vec![],
            config: ImageConfig::default(),
            files: 1,
            size_bytes,
            created_ms: 1,
            built_on: None,
            in_use: 0,
            usage: Default::default(),
        };
        self.images.lock().unwrap().insert(format!("{}:{}", image.name, image.version), image.clone());
        Ok(image)
    }
    async fn pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        let (name, version) = request.name_here()?;
        if name == "nosuch" {
            return Err(Error::not_found("no such image"));
        }
        let query = ImportQuery { version, ..ImportQuery::new(name.clone(), request.kind) };
        let image = self.import(query, Box::pin(stream::empty())).await?;
        let last = match name.as_str() {
            "breaks" => Err(Error::new(Code::Unreachable, "gone").retry_after_ms(7)),
            _ => Ok(PullEvent::Pulled(image)),
        };
        let progress =
            |bytes_fetched| Ok(PullEvent::Progress(PullProgress { bytes_fetched, ..Default::default() }));
        Ok(Box::pin(stream::iter([progress(1), progress(2), last])))
    }
    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.images.lock().unwrap().values().cloned().collect())
    }
    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        let images = self.images.lock().unwrap();
        images.get(reference).cloned().ok_or_else(|| Error::not_found(format!("no image `{reference}`")))
    }
    async fn image_remove(&self, reference: &str) -> Result<()> {
        let removed = self.images.lock().unwrap().remove(reference);
        removed.map(|_| ()).ok_or_else(|| Error::not_found(format!("no image `{reference}`")))
    }
    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream> {
        self.image_inspect(reference).await?;
        let part = |text: String| Ok(Bytes::from(text));
        let parts = [part(format!("{:?} of ", query.format)), part(reference.to_owned())];
        Ok(Box::pin(stream::iter(parts)))
    }
    async fn image_tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        let image = self.image_inspect(reference).await?;
        let config = request.config.unwrap_or_else(|| image.config.clone());
        Ok(ImageInfo { name: request.name, version: request.version, config, ..image })
    }
    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        let image = self.image_inspect(reference).await?;
        Ok(ImageInfo { version: request.version, size_bytes: request.threshold_bytes, ..image })
    }
}

impl api::arrow::Access for FakeEdge {}
