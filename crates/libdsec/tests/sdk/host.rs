//! A server for tests: the traits of `api::arrow` over real processes and files of this machine, unisolated.
//!
//! It keeps each exec's whole output, so it can be attached to at any offset, and it can cut connections on demand.
#![allow(dead_code)]

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use api::{
    Code, Error, ExecId, Result, SandboxId,
    arrow::*,
    exec::*,
    file::*,
    frame::{ClientFrame, ServerFrame, Stream as Which},
    image::*,
    spec::*,
    state::State,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command as Child,
    sync::{mpsc, watch},
};

#[derive(Default, Clone)]
pub struct Log {
    pub bytes: [Vec<u8>; 2],
    pub exit: Option<Exit>,
}

pub struct Run {
    pub info: ExecInfo,
    pub log: watch::Sender<Log>,
    pub pid: i32,
    stdin: Mutex<Option<mpsc::Sender<ClientFrame>>>,
}

pub struct Inside {
    pub info: SandboxInfo,
    pub root: PathBuf,
    pub runs: Mutex<HashMap<ExecId, Arc<Run>>>,
    keys: Mutex<HashMap<String, ExecId>>,
    faults: Arc<Faults>,
}

/// What goes wrong, counted down.
#[derive(Default)]
pub struct Faults {
    /// Attached streams that end after this many frames.
    pub cuts: AtomicU32,
    pub cut_after_frames: AtomicU32,
    /// Calls of exec and list that fail as if the connection had.
    pub lost: AtomicU32,
    /// Streams of a create that end before their last event.
    pub short_creates: AtomicU32,
    /// Attaches seen.
    pub attaches: AtomicU32,
    /// Processes started.
    pub starts: AtomicU32,
}

fn take(counter: &AtomicU32) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

pub struct Host {
    pub data: tempfile::TempDir,
    pub sandboxes: Mutex<HashMap<SandboxId, Arc<Inside>>>,
    pub images: Mutex<HashMap<String, ImageInfo>>,
    created: Mutex<HashMap<String, Vec<SandboxInfo>>>,
    pub faults: Arc<Faults>,
}

impl Host {
    pub fn new() -> Arc<Self> {
        let data = tempfile::tempdir_in("/var/tmp").unwrap();
        let host = Self {
            data,
            sandboxes: Mutex::default(),
            images: Mutex::default(),
            created: Mutex::default(),
            faults: Arc::default(),
        };
        host.images
            .lock()
            .unwrap()
            .insert("base".into(), image(&ImportQuery::new("base", LayerKind::Base), 0));
        Arc::new(host)
    }

    fn inside(&self, id: &SandboxId) -> Result<Arc<Inside>> {
        let found = self.sandboxes.lock().unwrap().get(id).cloned();
        found.ok_or_else(|| Error::not_found(format!("no sandbox {id}")))
    }

    fn make(&self, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let taken = |s: &Arc<Inside>| spec.name.is_some() && s.info.spec.name == spec.name;
        if self.sandboxes.lock().unwrap().values().any(taken) {
            return Err(Error::new(Code::AlreadyExists, "name: taken"));
        }
        let id = SandboxId::new(&"e1".parse().unwrap());
        let root = self.data.path().join(id.as_str());
        std::fs::create_dir(&root).unwrap();
        let info = SandboxInfo {
            id: id.clone(),
            state: State::Running,
            reason: None,
            spec: spec.clone(),
            project: api::spec::root_project(),
            layers: vec![],
            created_ms: 1_000,
            expires_ms: 1_000 + spec.ttl_ms,
            execs_live: 0,
        };
        let inside = Inside {
            info: info.clone(),
            root,
            runs: Mutex::default(),
            keys: Mutex::default(),
            faults: self.faults.clone(),
        };
        self.sandboxes.lock().unwrap().insert(id, Arc::new(inside));
        Ok(info)
    }
}

fn image(query: &ImportQuery, size_bytes: u64) -> ImageInfo {
    ImageInfo {
        name: query.name.clone(),
        version: query.version.clone(),
        kind: query.kind,
        digest: format!("blake3:{}", "0".repeat(64)),
        layers: vec![],
        config: ImageConfig {
            user: query.user.clone(),
            workdir: query.workdir.clone(),
            ..ImageConfig::default()
        },
        files: 1,
        size_bytes,
        created_ms: 1_000,
        built_on: None,
        in_use: 0,
        usage: Default::default(),
    }
}

#[async_trait]
impl Edge for Host {
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        request.validate()?;
        if !self.images.lock().unwrap().contains_key(&request.spec.image) {
            return Err(Error::not_found(format!("no image is named `{}`", request.spec.image)));
        }
        let key = request.idempotency_key.clone().unwrap_or_default();
        let known = self.created.lock().unwrap().get(&key).cloned();
        let all = match known {
            Some(all) => all,
            None => {
                let all = (0..request.count).map(|_| self.make(&request.spec)).collect::<Result<Vec<_>>>()?;
                self.created.lock().unwrap().insert(key, all.clone());
                all
            }
        };
        let mut events: Vec<_> =
            (0..).zip(all).map(|(index, sandbox)| CreateEvent::Created { index, sandbox }).collect();
        if take(&self.faults.short_creates) {
            events.pop();
        }
        Ok(stream::iter(events).boxed())
    }
    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        if take(&self.faults.lost) {
            return Err(Error::internal("lost the connection"));
        }
        let all = self.sandboxes.lock().unwrap();
        let has = |s: &SandboxInfo| {
            query.name.as_ref().is_none_or(|name| s.spec.name.as_ref() == Some(name))
                && query
                    .label
                    .as_ref()
                    .is_none_or(|l| s.spec.labels.iter().any(|(k, v)| *l == format!("{k}={v}")))
        };
        Ok(all.values().map(|s| s.info.clone()).filter(has).collect())
    }
    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        Ok(self.inside(id)?.info.clone())
    }
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        let inside = self.inside(id)?;
        self.sandboxes.lock().unwrap().remove(id);
        for run in inside.runs.lock().unwrap().values() {
            kill(run, 9);
        }
        Ok(())
    }
    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        let mut info = self.inside(id)?.info.clone();
        info.expires_ms = info.created_ms + request.ttl_ms;
        Ok(info)
    }
    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        Ok(self.inside(id)?)
    }
}

#[async_trait]
impl Images for Host {
    async fn import(&self, query: ImportQuery, mut body: ByteStream) -> Result<ImageInfo> {
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next().await {
            bytes.extend(chunk?);
        }
        std::fs::write(self.data.path().join(format!("{}.tar", query.name)), &bytes).unwrap();
        let info = image(&query, bytes.len() as u64);
        self.images.lock().unwrap().insert(query.name, info.clone());
        Ok(info)
    }
    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.images.lock().unwrap().values().cloned().collect())
    }
    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        let found = self.images.lock().unwrap().get(reference).cloned();
        found.ok_or_else(|| Error::not_found(format!("no image is named `{reference}`")))
    }
    async fn image_remove(&self, reference: &str) -> Result<()> {
        let gone = self.images.lock().unwrap().remove(reference);
        gone.map(|_| ()).ok_or_else(|| Error::not_found(format!("no image is named `{reference}`")))
    }
    async fn image_export(&self, reference: &str, _: ExportQuery) -> Result<ByteStream> {
        let image = self.image_inspect(reference).await?;
        let bytes = std::fs::read(self.data.path().join(format!("{}.tar", image.name))).unwrap();
        Ok(Box::pin(stream::iter([Ok(bytes.into())])))
    }
    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        let image = self.image_inspect(reference).await?;
        Ok(ImageInfo { version: request.version, ..image })
    }
}

/// The process is its group's first, so that the whole group can be signalled.
fn kill(run: &Run, signal: i32) {
    if run.log.borrow().exit.is_none() {
        let target = format!("-{}", run.pid);
        let sent =
            std::process::Command::new("/bin/kill").args([&format!("-{signal}"), "--", &target]).output();
        assert!(sent.is_ok());
    }
}

impl Inside {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn start(&self, request: &ExecRequest) -> Result<Arc<Run>> {
        let mut child = match &request.command {
            Command::Argv(argv) => {
                let mut child = Child::new(&argv[0]);
                child.args(&argv[1..]);
                child
            }
            Command::Shell(text) => {
                let mut child = Child::new("/bin/sh");
                child.arg("-c").arg(text);
                child
            }
        };
        child.envs(&self.info.spec.env).envs(&request.env).process_group(0);
        child.current_dir(request.cwd.as_ref().map_or_else(|| self.root.clone(), |cwd| self.path(cwd)));
        child.stdin(if request.stdin == Stdin::None { Stdio::null() } else { Stdio::piped() });
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.faults.starts.fetch_add(1, Ordering::SeqCst);
        let info = ExecInfo {
            exec_id: ExecId::new(),
            command: request.command.clone(),
            started_ms: 1_000,
            exit: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            pty: request.pty.is_some(),
        };
        let log = watch::Sender::new(Log::default());
        let mut child = match child.spawn() {
            Ok(child) => child,
            Err(e) => {
                let exit = Exit { code: 127, reason: ExitReason::NotStarted, signal: None, duration_ms: 0 };
                log.send_replace(Log { bytes: [vec![], e.to_string().into_bytes()], exit: Some(exit) });
                return Ok(Arc::new(Run { info, log, pid: 0, stdin: Mutex::default() }));
            }
        };
        let (input, mut frames) = mpsc::channel(8);
        let stdin = child.stdin.take();
        let first = if let Stdin::Data(data) = &request.stdin { Some(data.0.clone()) } else { None };
        tokio::spawn(async move {
            let Some(mut stdin) = stdin else { return };
            if let Some(first) = first {
                let _ = stdin.write_all(&first).await;
                return;
            }
            while let Some(frame) = frames.recv().await {
                match frame {
                    ClientFrame::Stdin(data) => drop(stdin.write_all(&data).await),
                    ClientFrame::StdinClose => return,
                    _ => {}
                }
            }
        });
        let pid = child.id().unwrap() as i32;
        let run = Arc::new(Run { info, log, pid, stdin: Mutex::new(Some(input)) });
        tokio::spawn(follow(run.clone(), child, request.timeout_ms));
        Ok(run)
    }

    fn attached(&self, run: &Arc<Run>, from: AttachQuery) -> ExecStream {
        let (output, receiver) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (input, mut frames) = mpsc::channel(FRAMES_IN_FLIGHT);
        let to = run.stdin.lock().unwrap().clone();
        tokio::spawn(async move {
            while let Some(frame) = frames.recv().await {
                if let Some(to) = &to {
                    let _ = to.send(frame).await;
                }
            }
        });
        let left = take(&self.faults.cuts).then(|| self.faults.cut_after_frames.load(Ordering::SeqCst));
        tokio::spawn(send(run.clone(), from, output, left));
        ExecStream { exec_id: run.info.exec_id.clone(), input, output: receiver }
    }

    fn run(&self, exec_id: &ExecId) -> Result<Arc<Run>> {
        let found = self.runs.lock().unwrap().get(exec_id).cloned();
        found.ok_or_else(|| Error::not_found(format!("no exec {exec_id}")))
    }
}

async fn follow(run: Arc<Run>, mut child: tokio::process::Child, timeout_ms: Option<u64>) {
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut a, mut b) = ([0; 4096], [0; 4096]);
    let (mut open_a, mut open_b) = (true, true);
    let clock = tokio::time::sleep(std::time::Duration::from_millis(timeout_ms.unwrap_or(1 << 40)));
    tokio::pin!(clock);
    let mut timed_out = false;
    while open_a || open_b {
        tokio::select! {
            n = stdout.read(&mut a), if open_a => match n.unwrap() {
                0 => open_a = false,
                n => run.log.send_modify(|l| l.bytes[0].extend(&a[..n])),
            },
            n = stderr.read(&mut b), if open_b => match n.unwrap() {
                0 => open_b = false,
                n => run.log.send_modify(|l| l.bytes[1].extend(&b[..n])),
            },
            () = &mut clock, if !timed_out => {
                timed_out = true;
                kill(&run, 9);
            }
        }
    }
    let status = child.wait().await.unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let reason = match signal {
        _ if timed_out => ExitReason::Timeout,
        Some(_) => ExitReason::Signal,
        None => ExitReason::Exited,
    };
    let code = status.code().unwrap_or_else(|| 128 + signal.unwrap());
    run.log.send_modify(|l| l.exit = Some(Exit { code, reason, signal, duration_ms: 2_000 }));
}

/// Frames from the offsets on; after `left` frames the stream is cut.
async fn send(run: Arc<Run>, from: AttachQuery, to: mpsc::Sender<ServerFrame>, mut left: Option<u32>) {
    let mut offsets = [from.stdout_offset as usize, from.stderr_offset as usize];
    let mut log = run.log.subscribe();
    loop {
        let now = log.borrow_and_update().clone();
        for (slot, stream) in [(0, Which::Stdout), (1, Which::Stderr)] {
            while offsets[slot] < now.bytes[slot].len() {
                if left == Some(0) {
                    return;
                }
                left = left.map(|n| n - 1);
                let end = now.bytes[slot].len().min(offsets[slot] + 1000);
                let data = Bytes::copy_from_slice(&now.bytes[slot][offsets[slot]..end]);
                let frame = ServerFrame::Output { stream, offset: offsets[slot] as u64, data };
                if to.send(frame).await.is_err() {
                    return;
                }
                offsets[slot] = end;
            }
        }
        if let Some(exit) = now.exit {
            if left.is_none() {
                let _ = to.send(ServerFrame::Exit(exit)).await;
            }
            return;
        }
        tokio::select! {
            changed = log.changed() => if changed.is_err() { return },
            () = to.closed() => return,
        }
    }
}

fn file_error(path: &str, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("{path}: not found")),
        std::io::ErrorKind::IsADirectory => Error::new(Code::IsDirectory, format!("{path}: is a directory")),
        _ => Error::new(Code::PermissionDenied, format!("{path}: {e}")),
    }
}

#[async_trait]
impl Chronus for Inside {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        let key = request.idempotency_key.clone().unwrap_or_default();
        let known = self.keys.lock().unwrap().get(&key).cloned();
        let run = match known {
            Some(exec_id) => self.run(&exec_id)?,
            None => {
                let run = self.start(&request)?;
                self.keys.lock().unwrap().insert(key, run.info.exec_id.clone());
                self.runs.lock().unwrap().insert(run.info.exec_id.clone(), run.clone());
                run
            }
        };
        if take(&self.faults.lost) {
            return Err(Error::internal("lost the connection"));
        }
        Ok(self.attached(&run, AttachQuery::default()))
    }
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        self.faults.attaches.fetch_add(1, Ordering::SeqCst);
        Ok(self.attached(&self.run(&exec_id)?, from))
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        let ids: Vec<_> = self.runs.lock().unwrap().keys().cloned().collect();
        let mut all = Vec::new();
        for id in ids {
            all.push(self.exec_inspect(id).await?);
        }
        Ok(all)
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        let run = self.run(&exec_id)?;
        let log = run.log.borrow();
        let [stdout_bytes, stderr_bytes] = [log.bytes[0].len() as u64, log.bytes[1].len() as u64];
        Ok(ExecInfo { exit: log.exit, stdout_bytes, stderr_bytes, ..run.info.clone() })
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        kill(&*self.run(&exec_id)?, request.signal);
        Ok(())
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        let info = self.file_stat(StatQuery::new(query.path.clone())).await?;
        let bytes = tokio::fs::read(self.path(&query.path)).await.map_err(|e| file_error(&query.path, &e))?;
        let from = (query.offset as usize).min(bytes.len());
        let length = query.length.map_or(bytes.len() - from, |l| (l as usize).min(bytes.len() - from));
        let body = Bytes::from(bytes).slice(from..from + length);
        let chunks: Vec<_> = body.chunks(1000).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        Ok(FileBody { info, body: stream::iter(chunks).boxed() })
    }
    async fn file_write(&self, query: WriteQuery, mut body: ByteStream) -> Result<FileInfo> {
        let path = self.path(&query.path);
        let mut bytes =
            if query.append { tokio::fs::read(&path).await.unwrap_or_default() } else { Vec::new() };
        while let Some(chunk) = body.next().await {
            bytes.extend(chunk?);
        }
        tokio::fs::create_dir_all(path.parent().unwrap()).await.unwrap();
        tokio::fs::write(&path, bytes).await.map_err(|e| file_error(&query.path, &e))?;
        self.file_stat(StatQuery::new(query.path)).await
    }
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        let path = self.path(&query.path);
        let found = if query.follow { path.metadata() } else { path.symlink_metadata() };
        let metadata = found.map_err(|e| file_error(&query.path, &e))?;
        let kind = match metadata.file_type() {
            t if t.is_dir() => FileKind::Directory,
            t if t.is_symlink() => FileKind::Symlink,
            _ => FileKind::File,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mode = std::os::unix::fs::MetadataExt::mode(&metadata) & 0o7777;
        Ok(FileInfo {
            name: name.into(),
            path: query.path.into(),
            kind,
            size_bytes: metadata.len(),
            mode,
            uid: 0,
            gid: 0,
            modified_ms: 0,
            symlink_target: None,
        })
    }
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        let entries = std::fs::read_dir(self.path(&query.path)).map_err(|e| file_error(&query.path, &e))?;
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            all.push(self.file_stat(StatQuery::new(format!("{}/{name}", query.path))).await?);
        }
        Ok(all)
    }
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        std::fs::create_dir_all(self.path(&request.path)).map_err(|e| file_error(&request.path, &e))?;
        self.file_stat(StatQuery::new(request.path)).await
    }
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        std::fs::rename(self.path(&request.from), self.path(&request.to))
            .map_err(|e| file_error(&request.from, &e))?;
        self.file_stat(StatQuery::new(request.to)).await
    }
    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        let path = self.path(&query.path);
        let done = match (path.is_dir(), query.recursive) {
            (true, true) => std::fs::remove_dir_all(path),
            (true, false) => std::fs::remove_dir(path),
            _ => std::fs::remove_file(path),
        };
        done.map_err(|e| file_error(&query.path, &e))
    }
    async fn file_watch(&self, _: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        let event = WatchEvent { kind: WatchKind::Created, name: "new".into() };
        Ok(stream::iter([Ok(event)]).boxed())
    }
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        let out =
            Child::new("tar").arg("-C").arg(self.path(&query.path)).args(["-c", "."]).output().await.unwrap();
        let chunks: Vec<_> = out.stdout.chunks(5000).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        Ok(stream::iter(chunks).boxed())
    }
    async fn tar_put(&self, query: TarQuery, mut body: ByteStream) -> Result<TarReport> {
        let mut child = Child::new("tar");
        child
            .arg("-C")
            .arg(self.path(&query.path))
            .args(["-x", "-v"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut bytes = 0;
        while let Some(chunk) = body.next().await {
            let chunk = chunk?;
            bytes += chunk.len() as u64;
            stdin.write_all(&chunk).await.unwrap();
        }
        drop(stdin);
        let out = child.wait_with_output().await.unwrap();
        assert!(out.status.success());
        Ok(TarReport { entries: out.stdout.iter().filter(|b| **b == b'\n').count() as u64, bytes })
    }

    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        let refused = |_| Error::new(Code::Conflict, format!("nothing listens on port {port}"));
        let inside = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map_err(refused)?;
        let (mut read, mut write) = inside.into_split();
        let (input, mut from_caller) = mpsc::channel::<Bytes>(8);
        let (to_caller, output) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Some(data) = from_caller.recv().await {
                write.write_all(&data).await.unwrap();
            }
            let _ = write.shutdown().await;
        });
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = read.read(&mut buffer).await {
                if to_caller.send(Ok(Bytes::copy_from_slice(&buffer[..n]))).await.is_err() {
                    return;
                }
            }
        });
        Ok(PortStream { input, output })
    }
}

/// The same over HTTP on a free port of the loopback: its URL.
pub async fn serve(host: Arc<Host>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(rpc::serve(listener.into(), rpc::front_router(host), std::future::pending()));
    url
}

impl api::arrow::Access for Host {}
