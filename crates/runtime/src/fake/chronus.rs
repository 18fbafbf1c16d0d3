//! The agent of a fake sandbox. Tar, watches and ports are answered with `unsupported`: nothing above relies on their
//! content, they are relayed untouched.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use api::{
    Code, Error, ExecId, Result,
    arrow::{BoxStream, ByteStream, Chronus, ExecStream, FileBody, PortStream},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
    limit,
};
use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::StreamExt;

use super::{
    Step, World,
    exec::Process,
    files::{Files, resolve},
    lock,
    script::Context,
};
use crate::Plan;

pub(super) struct FakeChronus {
    world: Arc<World>,
    env: BTreeMap<String, String>,
    workdir: String,
    files: Mutex<Files>,
    execs: Mutex<BTreeMap<ExecId, Arc<Process>>>,
    ended: Mutex<bool>,
}

impl FakeChronus {
    pub(super) fn new(world: Arc<World>, plan: &Plan) -> Self {
        Self {
            world,
            env: plan.env.clone(),
            workdir: plan.workdir.clone().unwrap_or_else(|| "/".into()),
            files: Mutex::default(),
            execs: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    pub(super) fn end(&self) {
        *lock(&self.ended) = true;
        lock(&self.execs).values().for_each(|p| p.end());
    }
    pub(super) fn cut_streams(&self) {
        lock(&self.execs).values().for_each(|p| p.cut_streams());
    }
    pub(super) fn lose_held(&self) {
        lock(&self.execs).values().for_each(|p| p.lose_held());
    }
    pub(super) fn bytes_held(&self) -> u64 {
        lock(&self.execs).values().map(|p| p.bytes_held()).sum()
    }

    /// A dead agent answers nobody.
    fn alive(&self) -> Result<()> {
        if *lock(&self.ended) {
            return Err(Error::internal("the agent does not answer"));
        }
        Ok(())
    }

    fn find(&self, id: &ExecId) -> Result<Arc<Process>> {
        self.alive()?;
        lock(&self.execs).get(id).cloned().ok_or_else(|| Error::not_found(format!("no exec {id}")))
    }

    fn path(&self, path: &str) -> Result<String> {
        self.alive()?;
        Ok(resolve(&self.workdir, path))
    }

    /// A run with the same key, or room for a new one.
    fn known(&self, request: &ExecRequest) -> Option<Arc<Process>> {
        let key = request.idempotency_key.as_ref()?;
        lock(&self.execs).values().find(|p| p.request.idempotency_key.as_ref() == Some(key)).cloned()
    }

    fn forget_old(&self) {
        let mut execs = lock(&self.execs);
        let ended: Vec<ExecId> = execs.values().filter(|p| p.has_ended()).map(|p| p.id.clone()).collect();
        let surplus = ended.len().saturating_sub(limit::EXECS_REMEMBERED_MAX);
        ended.iter().take(surplus).for_each(|id| drop(execs.remove(id)));
    }
}

#[async_trait]
impl Chronus for FakeChronus {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        request.validate()?;
        self.world.pass(Step::Exec).await?;
        self.alive()?;
        if let Some(process) = self.known(&request) {
            return Ok(process.attach(AttachQuery::default(), &self.world.tasks));
        }
        self.forget_old();
        let mut env = self.env.clone();
        env.extend(request.env.clone());
        let cwd = resolve(&self.workdir, request.cwd.as_deref().unwrap_or(""));
        let process = Arc::new(Process::new(request));
        lock(&self.execs).insert(process.id.clone(), process.clone());
        let stream = process.attach(AttachQuery::default(), &self.world.tasks);
        self.world.tasks.spawn(process.run(Context { env, cwd }));
        Ok(stream)
    }

    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        Ok(self.find(&exec_id)?.attach(from, &self.world.tasks))
    }

    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        self.alive()?;
        Ok(lock(&self.execs).values().map(|p| p.info()).collect())
    }

    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        Ok(self.find(&exec_id)?.info())
    }

    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        request.validate()?;
        self.find(&exec_id)?.signal(request.signal);
        Ok(())
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        query.validate()?;
        let (info, data) = lock(&self.files).read(&self.path(&query.path)?, query.offset, query.length)?;
        Ok(FileBody { info, body: Box::pin(futures_util::stream::iter([Ok(data)])) })
    }

    async fn file_write(&self, query: WriteQuery, mut body: ByteStream) -> Result<FileInfo> {
        query.validate()?;
        let path = self.path(&query.path)?;
        let mut data = BytesMut::new();
        while let Some(part) = body.next().await {
            data.extend_from_slice(&part?);
        }
        lock(&self.files).write(&path, data.freeze(), query.mode, query.append)
    }

    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        query.validate()?;
        lock(&self.files).stat(&self.path(&query.path)?)
    }

    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        query.validate()?;
        lock(&self.files).list(&self.path(&query.path)?, query.depth)
    }

    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        request.validate()?;
        lock(&self.files).mkdir(&self.path(&request.path)?, request.mode)
    }

    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        request.validate()?;
        lock(&self.files).rename(&self.path(&request.from)?, &self.path(&request.to)?)
    }

    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        query.validate()?;
        lock(&self.files).remove(&self.path(&query.path)?, query.recursive)
    }

    async fn file_watch(&self, _query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        Err(unsupported("watches"))
    }
    async fn tar_get(&self, _query: TarQuery) -> Result<ByteStream> {
        Err(unsupported("tar streams"))
    }
    async fn tar_put(&self, _query: TarQuery, _body: ByteStream) -> Result<TarReport> {
        Err(unsupported("tar streams"))
    }
    async fn port_dial(&self, _port: u16) -> Result<PortStream> {
        Err(unsupported("ports"))
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(Code::Unsupported, format!("a fake sandbox has no {what}"))
}
