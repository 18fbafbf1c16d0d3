//! The way inside for keys that may not do everything there: each verb asks.

use std::sync::Arc;

use api::{
    ExecId, Result,
    arrow::{BoxStream, ByteStream, Chronus, ExecStream, FileBody, PortStream},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
    iam::Action,
    spec::Kind,
};
use async_trait::async_trait;
use iam::Principal;

pub(crate) struct Inside {
    pub(crate) chronus: Arc<dyn Chronus>,
    pub(crate) who: Principal,
    pub(crate) kind: Kind,
}

impl Inside {
    fn may(&self, action: fn(Kind) -> Action) -> Result<&dyn Chronus> {
        self.who.may(action(self.kind))?;
        Ok(self.chronus.as_ref())
    }
}

#[async_trait]
impl Chronus for Inside {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        self.may(Action::SandboxExec)?.exec(request).await
    }
    /// Whoever attaches may write to its standard input.
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        self.may(Action::SandboxExec)?.exec_attach(exec_id, from).await
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        self.may(Action::SandboxRead)?.exec_list().await
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        self.may(Action::SandboxRead)?.exec_inspect(exec_id).await
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        self.may(Action::SandboxExec)?.exec_signal(exec_id, request).await
    }
    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        self.may(Action::SandboxFiles)?.file_read(query).await
    }
    async fn file_write(&self, query: WriteQuery, body: ByteStream) -> Result<FileInfo> {
        self.may(Action::SandboxFiles)?.file_write(query, body).await
    }
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        self.may(Action::SandboxFiles)?.file_stat(query).await
    }
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        self.may(Action::SandboxFiles)?.file_list(query).await
    }
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        self.may(Action::SandboxFiles)?.file_mkdir(request).await
    }
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        self.may(Action::SandboxFiles)?.file_move(request).await
    }
    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        self.may(Action::SandboxFiles)?.file_remove(query).await
    }
    async fn file_watch(&self, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        self.may(Action::SandboxFiles)?.file_watch(query).await
    }
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        self.may(Action::SandboxFiles)?.tar_get(query).await
    }
    async fn tar_put(&self, query: TarQuery, body: ByteStream) -> Result<TarReport> {
        self.may(Action::SandboxFiles)?.tar_put(query, body).await
    }
    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        self.may(Action::SandboxPorts)?.port_dial(port).await
    }
}
