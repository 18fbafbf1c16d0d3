//! Files of a sandbox.

use std::{io::Cursor, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures_util::StreamExt;
use libdsec::{Error, FileInfo, FileKind, TarReport, WatchEvent, WatchKind};
use pyo3::{IntoPyObjectExt, prelude::*, pybacked::PyBackedBytes, types::PyBytes};
use tokio::io::AsyncWriteExt;

use crate::{call::Call, feed::Feed, runtime::Home, sandbox::Handle};

#[pyclass(frozen)]
pub(crate) struct Files {
    pub(crate) handle: Arc<Handle>,
    pub(crate) user: Option<String>,
}

impl Files {
    fn files(&self, py: Python<'_>) -> PyResult<libdsec::Files> {
        let files = self.handle.sandbox(py)?.files();
        Ok(match &self.user {
            Some(user) => files.as_user(user),
            None => files,
        })
    }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// `(name, path, kind, size, mode, uid, gid, modified_ms, target)`; names are bytes.
fn info(py: Python<'_>, info: FileInfo) -> PyResult<Py<PyAny>> {
    let bytes = |data: &[u8]| PyBytes::new(py, data).unbind();
    let tuple = (
        bytes(info.name.0.as_ref()),
        bytes(info.path.0.as_ref()),
        kind(info.kind),
        info.size_bytes,
        info.mode,
        info.uid,
        info.gid,
        info.modified_ms,
        info.symlink_target.map(|target| bytes(target.0.as_ref())),
    );
    tuple.into_py_any(py)
}

/// `(entries, bytes)`
fn report(py: Python<'_>, report: TarReport) -> PyResult<Py<PyAny>> {
    (report.entries, report.bytes).into_py_any(py)
}

fn local(what: &str, path: &std::path::Path, e: &std::io::Error) -> Error {
    Error::invalid(format!("{what} {} (on this machine): {e}", path.display()))
}

#[pymethods]
impl Files {
    #[pyo3(signature = (path, offset, length))]
    fn read(&self, py: Python<'_>, path: String, offset: u64, length: Option<u64>) -> PyResult<Call> {
        let files = self.files(py)?;
        let work = async move {
            match (offset, length) {
                (0, None) => files.read(&path).await,
                (offset, length) => files.read_range(&path, offset, length.unwrap_or(u64::MAX)).await,
            }
        };
        Ok(Call::new(work, |py, data: Bytes| Ok(PyBytes::new(py, &data).into_any().unbind())))
    }

    #[pyo3(signature = (path, data, append, mode))]
    fn write(
        &self,
        py: Python<'_>,
        path: String,
        data: PyBackedBytes,
        append: bool,
        mode: Option<u32>,
    ) -> PyResult<Call> {
        let files = self.files(py)?;
        let data = Bytes::from_owner(data);
        let work = async move {
            match (append, mode) {
                (true, _) => files.append(&path, data).await,
                (false, None) => files.write(&path, data).await,
                (false, mode) => files.write_from(&path, Cursor::new(data), mode).await,
            }
        };
        Ok(Call::new(work, info))
    }

    /// A local file of any size, streamed.
    #[pyo3(signature = (local_path, path, mode))]
    fn upload(&self, py: Python<'_>, local_path: PathBuf, path: String, mode: Option<u32>) -> PyResult<Call> {
        let files = self.files(py)?;
        let work = async move {
            let file = tokio::fs::File::open(&local_path).await;
            let file = file.map_err(|e| local("reading", &local_path, &e))?;
            files.write_from(&path, file, mode).await
        };
        Ok(Call::new(work, info))
    }

    /// Into a local file, of any size, streamed; answers the number of bytes.
    fn download(&self, py: Python<'_>, path: String, local_path: PathBuf) -> PyResult<Call> {
        let files = self.files(py)?;
        let work = async move {
            let mut body = files.read_stream(&path).await?.body;
            let at = |e: std::io::Error| local("writing", &local_path, &e);
            let mut file = tokio::fs::File::create(&local_path).await.map_err(at)?;
            let mut bytes = 0u64;
            while let Some(chunk) = body.next().await.transpose()? {
                file.write_all(&chunk).await.map_err(at)?;
                bytes += chunk.len() as u64;
            }
            file.flush().await.map_err(at)?;
            Ok(bytes)
        };
        Ok(Call::new(work, |py, bytes: u64| bytes.into_py_any(py)))
    }

    fn list(&self, py: Python<'_>, path: String, depth: u32) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.list_depth(&path, depth).await }, |py, all| {
            let all: Vec<_> = all.into_iter().map(|one| info(py, one)).collect::<PyResult<_>>()?;
            all.into_py_any(py)
        }))
    }

    fn stat(&self, py: Python<'_>, path: String, follow: bool) -> PyResult<Call> {
        let files = self.files(py)?;
        let work = async move { if follow { files.stat(&path).await } else { files.lstat(&path).await } };
        Ok(Call::new(work, info))
    }

    fn mkdir(&self, py: Python<'_>, path: String) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.mkdir(&path).await }, info))
    }

    fn rename(&self, py: Python<'_>, from: String, to: String) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.rename(&from, &to).await }, info))
    }

    fn remove(&self, py: Python<'_>, path: String, recursive: bool) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::unit(async move {
            if recursive { files.remove_all(&path).await } else { files.remove(&path).await }
        }))
    }

    fn upload_dir(&self, py: Python<'_>, local_path: PathBuf, path: String) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.upload_dir(local_path, &path).await }, report))
    }

    fn download_dir(&self, py: Python<'_>, path: String, local_path: PathBuf) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.download_dir(&path, local_path).await }, report))
    }

    /// Answers when the kernel watches: what happens after that is told.
    fn watch(&self, py: Python<'_>, path: String, recursive: bool) -> PyResult<Call> {
        let files = self.files(py)?;
        Ok(Call::new(async move { files.watch(&path, recursive).await }, |py, events| {
            Ok(Py::new(py, Watch { feed: Feed::new(events), home: Home::here() })?.into_any())
        }))
    }
}

/// Events of a directory.
#[pyclass(frozen)]
pub(crate) struct Watch {
    feed: Arc<Feed<WatchEvent>>,
    home: Home,
}

#[pymethods]
impl Watch {
    /// `(kind, name)`; None at the end, False: ask again.
    fn next(&self) -> PyResult<Call> {
        self.home.check("watch", "watch again")?;
        Ok(self.feed.next(|py, event| {
            let kind = match event.kind {
                WatchKind::Created => "created",
                WatchKind::Modified => "modified",
                WatchKind::Removed => "removed",
                WatchKind::MovedFrom => "moved_from",
                WatchKind::MovedTo => "moved_to",
                WatchKind::Overflow => "overflow",
            };
            let name = PyBytes::new(py, event.name.0.as_ref());
            (kind, name).into_py_any(py)
        }))
    }

    fn close(&self) -> Call {
        Call::unit(self.feed.clone().close())
    }
}
