//! files: a sandbox's files, as one of its users. Paths are the sandbox's own.

use api::{
    Error, Result,
    arrow::{BoxStream, ByteStream, FileBody},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, WatchEvent,
        WatchQuery, WriteQuery,
    },
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::io::AsyncRead;

use super::{Sandbox, tree};
use crate::retry;

/// The most that [`Files::read`] takes into memory; [`Files::read_stream`] has no bound.
const READ_BYTES_MAX: u64 = 256 << 20;

impl Sandbox {
    /// Its files, as the sandbox's user; see [`Files::as_user`].
    ///
    /// ```no_run
    /// # async fn demo(sandbox: libdsec::Sandbox) -> libdsec::Result<()> {
    /// sandbox.files().write("/tmp/hello", "hi\n").await?;
    /// assert_eq!(&sandbox.files().read("/tmp/hello").await?[..], b"hi\n");
    /// # Ok(())
    /// # }
    /// ```
    pub fn files(&self) -> Files {
        Files { sandbox: self.clone(), user: None }
    }
}

/// The verbs on files. A relative path starts at the sandbox's working directory.
#[derive(Clone, Debug)]
pub struct Files {
    pub(super) sandbox: Sandbox,
    pub(super) user: Option<String>,
}

impl Files {
    /// As this user, with its rights and owning what it makes: a name or `uid[:gid]`.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The whole file. Errors: `not_found`, `is_directory`, `permission_denied`; `invalid_argument` over 256 MiB.
    pub async fn read(&self, path: &str) -> Result<Bytes> {
        let mut attempt = 1;
        loop {
            match self.read_once(path).await {
                Err(e) if attempt < retry::ATTEMPTS_MAX && retry::may_heal(&e) => {
                    tokio::time::sleep(retry::wait(attempt, &e)).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn read_once(&self, path: &str) -> Result<Bytes> {
        let too_big = || Error::invalid(format!("`{path}` is over {READ_BYTES_MAX} bytes: use read_stream"));
        let FileBody { info, mut body } = self.read_stream(path).await?;
        if info.size_bytes > READ_BYTES_MAX {
            return Err(too_big());
        }
        let mut bytes = BytesMut::with_capacity(info.size_bytes as usize);
        while let Some(chunk) = body.next().await.transpose()? {
            if (bytes.len() + chunk.len()) as u64 > READ_BYTES_MAX {
                return Err(too_big());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// The whole file as text; what is not UTF-8 is U+FFFD.
    pub async fn read_text(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.read(path).await?).into_owned())
    }

    /// A file of any size, and what it is.
    pub async fn read_stream(&self, path: &str) -> Result<FileBody> {
        self.read_with(ReadQuery { user: self.user.clone(), ..ReadQuery::new(path) }).await
    }

    /// `length` bytes from `offset` on; fewer where the file ends.
    pub async fn read_range(&self, path: &str, offset: u64, length: u64) -> Result<Bytes> {
        let query =
            ReadQuery { user: self.user.clone(), offset, length: Some(length), ..ReadQuery::new(path) };
        let mut body = self.read_with(query).await?.body;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = body.next().await.transpose()? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    async fn read_with(&self, query: ReadQuery) -> Result<FileBody> {
        query.validate()?;
        let chronus = self.sandbox.chronus().await?;
        retry::repeat(|| chronus.file_read(query.clone())).await
    }

    /// The file becomes `data`, whole or not at all; its directories are made.
    pub async fn write(&self, path: &str, data: impl Into<Bytes>) -> Result<FileInfo> {
        let (query, data) = (self.write_query(path), data.into());
        query.validate()?;
        let chronus = self.sandbox.chronus().await?;
        // The same bytes to the same place: safe to send twice.
        retry::repeat(|| chronus.file_write(query.clone(), tree::stream_of_bytes(data.clone()))).await
    }

    /// `data` after what the file holds. Never sent twice.
    pub async fn append(&self, path: &str, data: impl Into<Bytes>) -> Result<FileInfo> {
        let query = WriteQuery { append: true, ..self.write_query(path) };
        query.validate()?;
        self.sandbox.chronus().await?.file_write(query, tree::stream_of_bytes(data.into())).await
    }

    /// The file becomes what the stream yields; an error in the stream leaves the file as it was.
    pub async fn write_stream(&self, path: &str, body: ByteStream) -> Result<FileInfo> {
        let query = self.write_query(path);
        query.validate()?;
        self.sandbox.chronus().await?.file_write(query, body).await
    }

    /// As [`Files::write_stream`], out of a reader, with these permission bits where the file is new.
    pub async fn write_from(
        &self,
        path: &str,
        reader: impl AsyncRead + Send + 'static,
        mode: Option<u32>,
    ) -> Result<FileInfo> {
        let query = WriteQuery { mode, ..self.write_query(path) };
        query.validate()?;
        self.sandbox.chronus().await?.file_write(query, tree::stream_of(reader)).await
    }

    fn write_query(&self, path: &str) -> WriteQuery {
        WriteQuery { user: self.user.clone(), ..WriteQuery::new(path) }
    }

    /// Of what the name leads to: symlinks are followed.
    pub async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.stat_with(path, true).await
    }

    /// Of the name itself.
    pub async fn lstat(&self, path: &str) -> Result<FileInfo> {
        self.stat_with(path, false).await
    }

    async fn stat_with(&self, path: &str, follow: bool) -> Result<FileInfo> {
        let query = StatQuery { user: self.user.clone(), follow, ..StatQuery::new(path) };
        query.validate()?;
        let chronus = self.sandbox.chronus().await?;
        retry::repeat(|| chronus.file_stat(query.clone())).await
    }

    /// A directory's own entries.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.list_depth(path, 1).await
    }

    /// A directory, `depth` levels down.
    pub async fn list_depth(&self, path: &str, depth: u32) -> Result<Vec<FileInfo>> {
        let query = FileListQuery { user: self.user.clone(), depth, ..FileListQuery::new(path) };
        query.validate()?;
        let chronus = self.sandbox.chronus().await?;
        retry::repeat(|| chronus.file_list(query.clone())).await
    }

    /// With its parents; one that is there already is no error.
    pub async fn mkdir(&self, path: &str) -> Result<FileInfo> {
        let request = MkdirRequest { user: self.user.clone(), ..MkdirRequest::new(path) };
        request.validate()?;
        let chronus = self.sandbox.chronus().await?;
        retry::repeat(|| chronus.file_mkdir(request.clone())).await
    }

    /// Renames. (`move` is a word of Rust.)
    pub async fn rename(&self, from: &str, to: &str) -> Result<FileInfo> {
        let request = MoveRequest { from: from.into(), to: to.into(), user: self.user.clone() };
        request.validate()?;
        self.sandbox.chronus().await?.file_move(request).await
    }

    /// A file or an empty directory.
    pub async fn remove(&self, path: &str) -> Result<()> {
        self.remove_with(path, false).await
    }

    /// A directory with all that is in it.
    pub async fn remove_all(&self, path: &str) -> Result<()> {
        self.remove_with(path, true).await
    }

    async fn remove_with(&self, path: &str, recursive: bool) -> Result<()> {
        let query = RemoveQuery { user: self.user.clone(), recursive, ..RemoveQuery::new(path) };
        query.validate()?;
        self.sandbox.chronus().await?.file_remove(query).await
    }

    /// Events of a directory, and of those below with `recursive`, until the stream is dropped.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<BoxStream<Result<WatchEvent>>> {
        let query = WatchQuery { user: self.user.clone(), recursive, ..WatchQuery::new(path) };
        query.validate()?;
        let chronus = self.sandbox.chronus().await?;
        retry::repeat(|| chronus.file_watch(query.clone())).await
    }
}
