//! The service of one sandbox: trait `Chronus`, each verb in the file of its name.

pub mod exec;
pub mod file;
pub mod port;
pub mod tar;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use api::{
    ExecId, Result,
    arrow::{BoxStream, ByteStream, Chronus, ExecStream, FileBody, PortStream},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
};
use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::mpsc;

use crate::inside::Inside;

/// chronus. Lives in a runtime of one thread.
pub struct Service {
    inside: Arc<Inside>,
    execs: Arc<exec::Table>,
}

impl Service {
    pub fn new(inside: Inside) -> Self {
        let inside = Arc::new(inside);
        Self { execs: Arc::new(exec::Table::new(inside.clone())), inside }
    }
}

#[async_trait]
impl Chronus for Service {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        request.validate()?;
        self.execs.start(request).await
    }
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        Ok(exec::attach::attach(self.execs.find(&exec_id)?, from))
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        Ok(self.execs.list())
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        Ok(self.execs.find(&exec_id)?.info())
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        request.validate()?;
        let exec = self.execs.find(&exec_id)?;
        exec::signal::signal(&exec, request)
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        query.validate()?;
        file::read::read(&self.inside, query).await
    }
    async fn file_write(&self, query: WriteQuery, body: ByteStream) -> Result<FileInfo> {
        query.validate()?;
        file::write::write(&self.inside, query, body).await
    }
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        query.validate()?;
        file::stat::stat(&self.inside, query).await
    }
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        query.validate()?;
        file::list::list(&self.inside, query).await
    }
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        request.validate()?;
        file::mkdir::mkdir(&self.inside, request).await
    }
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        request.validate()?;
        file::rename::rename(&self.inside, request).await
    }
    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        query.validate()?;
        file::remove::remove(&self.inside, query).await
    }
    async fn file_watch(&self, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        query.validate()?;
        file::watch::watch(&self.inside, query).await
    }
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        query.validate()?;
        tar::get::get(&self.inside, query).await
    }
    async fn tar_put(&self, query: TarQuery, body: ByteStream) -> Result<TarReport> {
        query.validate()?;
        tar::put::put(&self.inside, query, body).await
    }

    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        port::dial(&self.inside, port).await
    }
}

/// A channel's receiving end as a stream.
pub(crate) fn channel_stream<T: Send + 'static>(channel: mpsc::Receiver<T>) -> impl Stream<Item = T> + Send {
    struct Ends<T>(mpsc::Receiver<T>);
    impl<T> Stream for Ends<T> {
        type Item = T;
        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
            self.0.poll_recv(context)
        }
    }
    Ends(channel)
}
