//! `Chronus` over HTTP: files and tar here; execs and ports stand beside it.

use api::{
    Error, ExecId, Result,
    arrow::{BoxStream, ByteStream, Chronus, ExecStream, FileBody, PortStream},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
};
use async_trait::async_trait;
use futures_util::stream;
use http::Method;
use tokio::time::timeout;

use super::{
    ChronusClient,
    body::{self, Lines},
    origin::{DEADLINE, NO_DEADLINE},
};
use crate::FILE_HEADER;

/// A watch's server gives a sign of life every 15 s.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(60);

#[async_trait]
impl Chronus for ChronusClient {
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        self.exec_start(request).await
    }
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream> {
        self.attach(&exec_id, from).await
    }
    async fn exec_list(&self) -> Result<Vec<ExecInfo>> {
        self.execs().await
    }
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo> {
        self.exec_info(&exec_id).await
    }
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()> {
        self.send_signal(&exec_id, request).await
    }

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody> {
        query.validate()?;
        let path = self.path_query("/files", &query)?;
        let response = self.origin.send(self.origin.request(Method::GET, path), DEADLINE).await?;
        let info =
            response.headers().get(FILE_HEADER).and_then(|v| serde_json::from_slice(v.as_bytes()).ok());
        let info = info.ok_or_else(|| Error::internal("the server did not tell what the file is"))?;
        Ok(FileBody { info, body: response.into_body().bytes() })
    }

    async fn file_write(&self, query: WriteQuery, bytes: ByteStream) -> Result<FileInfo> {
        query.validate()?;
        let path = self.path_query("/files", &query)?;
        let request = self.origin.request(Method::PUT, path).map(|_| body::stream(bytes));
        // As long as the file is.
        self.origin.json(request, NO_DEADLINE).await
    }

    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo> {
        query.validate()?;
        let path = self.path_query("/files/stat", &query)?;
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>> {
        query.validate()?;
        let path = self.path_query("/files/list", &query)?;
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo> {
        let request = self.origin.request_json(Method::POST, self.path("/files/mkdir"), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo> {
        let request = self.origin.request_json(Method::POST, self.path("/files/move"), &request)?;
        self.origin.json(request, DEADLINE).await
    }

    async fn file_remove(&self, query: RemoveQuery) -> Result<()> {
        query.validate()?;
        let path = self.path_query("/files", &query)?;
        // A tree may be large.
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE * 10).await
    }

    async fn file_watch(&self, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
        query.validate()?;
        let path = self.path_query("/files/watch", &query)?;
        let response = self.origin.send(self.origin.request(Method::GET, path), DEADLINE).await?;
        let state = Some((Lines::new(response.into_body()), self.origin.clone()));
        Ok(Box::pin(stream::unfold(state, |state| async {
            let (mut lines, origin) = state?;
            match timeout(SILENCE_MAX, lines.next::<WatchEvent>()).await {
                Ok(None) => None,
                Ok(Some(Ok(event))) => Some((Ok(event), Some((lines, origin)))),
                Ok(Some(Err(e))) => Some((Err(e), None)),
                Err(_) => Some((Err(origin.ended("the next event; watch again")), None)),
            }
        })))
    }

    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream> {
        query.validate()?;
        let path = self.path_query("/tar", &query)?;
        let response = self.origin.send(self.origin.request(Method::GET, path), DEADLINE).await?;
        Ok(response.into_body().bytes())
    }

    async fn tar_put(&self, query: TarQuery, bytes: ByteStream) -> Result<TarReport> {
        query.validate()?;
        let path = self.path_query("/tar", &query)?;
        let request = self.origin.request(Method::PUT, path).map(|_| body::stream(bytes));
        self.origin.json(request, NO_DEADLINE).await
    }

    async fn port_dial(&self, port: u16) -> Result<PortStream> {
        self.dial(port).await
    }
}
