//! What can be done inside a sandbox, as the edge offers it: execs end here, at their logs; files, tars, watches and
//! ports are relayed untouched. Each call looks at the sandbox's state first, so a broken sandbox answers at once.

use std::{sync::Arc, time::Duration};

use api::{
    Class, Code, ExecId, Result,
    arrow::{BoxStream, ByteStream, Chronus, ExecStream, FileBody, PortStream},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
    state::State,
};
use async_trait::async_trait;

use super::Sandbox;

/// How long a call that failed for reasons of ours waits to learn whether the sandbox has died.
const DEATH_NOTICE_MS_MAX: u64 = 200;

pub(super) struct SandboxChronus {
    sandbox: Arc<Sandbox>,
}

impl SandboxChronus {
    pub(super) fn new(sandbox: Arc<Sandbox>) -> Self {
        Self { sandbox }
    }

    /// The agent may die a moment before the edge hears of it: then say so instead of "internal".
    async fn explain<T>(&self, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        if error.code.class() == Class::Broken || error.code == Code::SandboxBroken {
            let mut status = self.sandbox.status.clone();
            let died = status.wait_for(|s| s.state != State::Running);
            let deadline = Duration::from_millis(DEATH_NOTICE_MS_MAX);
            let died = tokio::time::timeout(deadline, died).await.is_ok();
            if died && let Err(why) = self.sandbox.inside() {
                return Err(why);
            }
        }
        Err(error)
    }
}

macro_rules! relay {
    ($self:ident, $verb:ident($($argument:expr),*)) => {{
        let result = $self.sandbox.inside()?.$verb($($argument),*).await;
        $self.explain(result).await
    }};
}

#[async_trait]
impl Chronus for SandboxChronus {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        let inside = self.sandbox.inside()?;
        let result = self.sandbox.execs.exec(request, inside).await;
        self.explain(result).await
    }
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        self.sandbox.execs.attach(&exec_id, from)
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        Ok(self.sandbox.execs.list())
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        self.sandbox.execs.inspect(&exec_id)
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        let inside = self.sandbox.inside()?;
        let result = self.sandbox.execs.signal(&exec_id, request, inside.as_ref()).await;
        self.explain(result).await
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        relay!(self, file_read(query))
    }
    async fn file_write(&self, query: WriteQuery, body: ByteStream) -> Result<FileInfo> {
        relay!(self, file_write(query, body))
    }
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        relay!(self, file_stat(query))
    }
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        relay!(self, file_list(query))
    }
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        relay!(self, file_mkdir(request))
    }
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        relay!(self, file_move(request))
    }
    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        relay!(self, file_remove(query))
    }
    async fn file_watch(&self, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        relay!(self, file_watch(query))
    }
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        relay!(self, tar_get(query))
    }
    async fn tar_put(&self, query: TarQuery, body: ByteStream) -> Result<TarReport> {
        relay!(self, tar_put(query, body))
    }
    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        relay!(self, port_dial(port))
    }
}
