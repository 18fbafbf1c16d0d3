//! Whole directories, as tar streams made and read on the fly: nothing is staged on disk.
//!
//! Bytes from a sandbox are hostile: a download never writes outside its directory (the tar reader refuses `..` and
//! ways through symlinks), sets no owners and no setuid bits, and makes no devices.

use std::{
    io,
    path::{Path, PathBuf},
};

use api::{
    Code, Error, Result,
    arrow::ByteStream,
    file::{TarQuery, TarReport},
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::{io::AsyncRead, sync::mpsc};
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};

use super::files::Files;
use crate::image::pack::{self, Pack};

/// Bytes in one chunk of a stream that we make.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// A body out of a reader.
pub fn stream_of(reader: impl AsyncRead + Send + 'static) -> ByteStream {
    let chunks = ReaderStream::with_capacity(reader, CHUNK_BYTES);
    Box::pin(chunks.map_err(|e| Error::invalid(format!("reading what is to be sent: {e}"))))
}

/// A body out of memory.
pub(crate) fn stream_of_bytes(data: Bytes) -> ByteStream {
    let chunks = stream::unfold(data, |mut rest| async move {
        let chunk = rest.split_to(rest.len().min(CHUNK_BYTES));
        (!chunk.is_empty()).then_some((Ok(chunk), rest))
    });
    chunks.boxed()
}

/// A fault on this machine, with the path.
pub(crate) fn local(what: &str, path: &Path, e: &io::Error) -> Error {
    let code = match e.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::IsADirectory => Code::IsDirectory,
        io::ErrorKind::StorageFull => Code::DiskFull,
        _ => Code::InvalidArgument,
    };
    Error::new(code, format!("{what} {} (on this machine): {e}", path.display()))
}

impl Files {
    /// What is in `local` comes to be in the sandbox's directory `path`, which is made. Symlinks stay symlinks.
    pub async fn upload_dir(&self, local: impl AsRef<Path>, path: &str) -> Result<TarReport> {
        self.mkdir(path).await?;
        let body = pack::stream(local.as_ref(), Pack { metadata: false });
        self.upload_tar(path, body).await
    }

    /// A tar stream into the directory `path`.
    pub async fn upload_tar(&self, path: &str, body: ByteStream) -> Result<TarReport> {
        let query = self.tar_query(path)?;
        self.sandbox.chronus().await?.tar_put(query, body).await
    }

    /// What is in the sandbox's directory `path` comes to be in `local`, which is made.
    pub async fn download_dir(&self, path: &str, local: impl AsRef<Path>) -> Result<TarReport> {
        unpack(self.download_tar(path).await?, local.as_ref().to_owned()).await
    }

    /// The directory `path` as a tar stream.
    pub async fn download_tar(&self, path: &str) -> Result<ByteStream> {
        let query = self.tar_query(path)?;
        self.sandbox.chronus().await?.tar_get(query).await
    }

    fn tar_query(&self, path: &str) -> Result<TarQuery> {
        let query = TarQuery { path: path.into(), user: self.user.clone() };
        query.validate()?;
        Ok(query)
    }
}

async fn unpack(body: ByteStream, directory: PathBuf) -> Result<TarReport> {
    // An error of the stream would reach us only as the tar reader's; keep the first one as it is.
    let (failed, mut failure) = mpsc::channel(1);
    let body = body.map_err(move |e| {
        let _ = failed.try_send(e.clone());
        io::Error::other(e)
    });
    let reader = SyncIoBridge::new(StreamReader::new(body));
    let done = tokio::task::spawn_blocking(move || unpack_blocking(reader, &directory)).await;
    match done {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(e)) => Err(failure.try_recv().unwrap_or(e)),
        Err(e) => Err(Error::internal(format!("the unpacking thread: {e}"))),
    }
}

fn unpack_blocking(mut reader: impl io::Read, directory: &Path) -> Result<TarReport> {
    let at = |e: &io::Error| local("unpacking into", directory, e);
    std::fs::create_dir_all(directory).map_err(|e| at(&e))?;
    let mut archive = tar::Archive::new(&mut reader);
    let mut report = TarReport::default();
    // Directories last, so that one without write permission can be filled first.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(|e| at(&e))? {
        let mut entry = entry.map_err(|e| at(&e))?;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            directories.push(entry);
            continue;
        }
        if !(kind.is_file()
            || kind.is_symlink()
            || kind.is_hard_link()
            || kind.is_contiguous()
            || kind.is_gnu_sparse())
        {
            continue;
        }
        let bytes = entry.size();
        if !entry.unpack_in(directory).map_err(|e| at(&e))? {
            return Err(Error::invalid("the sandbox sent an archive with a path that leads out of it"));
        }
        report.entries += 1;
        report.bytes += bytes;
    }
    for mut entry in directories {
        if entry.unpack_in(directory).map_err(|e| at(&e))? {
            report.entries += 1;
        }
    }
    io::copy(&mut reader, &mut io::sink()).map_err(|e| at(&e))?;
    Ok(report)
}
