//! read: the child opens, the agent reads from the descriptor that it passes back.
//!
//! Only regular files: a pipe or a device could make the agent wait. The size is not believed, since files of /proc
//! have none: the body ends at end-of-file.

use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    pin::Pin,
    task::{Context, Poll},
};

use api::{
    Code, Error, Result,
    arrow::FileBody,
    file::{FileInfo, FileKind, ReadQuery},
    limit::FRAME_BYTES_MAX,
};
use bytes::Bytes;
use futures_core::Stream;
use rustix::fs::{OFlags, fstat};

use super::{describe, failed, failed_io, kind, open};
use crate::{
    heap::TrimAfter,
    inside::{Depth, Inside},
    worker::{Job, Worker},
};

pub async fn read(inside: &Inside, query: ReadQuery) -> Result<FileBody> {
    let (path, user) = (query.path.clone(), query.user.clone());
    let mut worker = Worker::run(inside, Depth::Files, user.as_deref(), Vec::new(), |job| {
        let (info, fd) = open_file(job, &path)?;
        job.answer(&info, &[fd.as_fd()])
    })
    .await?;
    let (info, fds) = worker.answer::<FileInfo>().await?;
    let fd = fds.into_iter().next().ok_or_else(|| Error::internal("a file without its descriptor"))?;
    let body = Body {
        file: File::from(fd),
        path: query.path,
        offset: query.offset,
        left: query.length.unwrap_or(u64::MAX),
        rested: true,
        _trim: TrimAfter,
    };
    Ok(FileBody { info, body: Box::pin(body) })
}

fn open_file(job: &Job, path: &str) -> Result<(FileInfo, OwnedFd)> {
    let path = job.absolute(path);
    // O_NONBLOCK: opening a FIFO without a writer would wait.
    let fd = open(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK, 0).map_err(|e| failed(&path, e))?;
    let stat = fstat(&fd).map_err(|e| failed(&path, e))?;
    match kind(&stat) {
        FileKind::File => Ok((describe(path.as_bytes(), &stat, None), fd)),
        FileKind::Directory => Err(Error::new(Code::IsDirectory, format!("`{path}`: is a directory"))),
        other => Err(Error::invalid(format!("`{path}`: is no regular file but a {other:?}"))),
    }
}

/// Reads a chunk at each poll and rests between two, so that a large file does not keep others waiting.
struct Body {
    file: File,
    path: String,
    offset: u64,
    left: u64,
    rested: bool,
    _trim: TrimAfter,
}

impl Stream for Body {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.rested {
            self.rested = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let length = self.left.min(FRAME_BYTES_MAX as u64) as usize;
        if length == 0 {
            return Poll::Ready(None);
        }
        let mut buffer = vec![0; length];
        match self.file.read_at(&mut buffer, self.offset) {
            Ok(0) => Poll::Ready(None),
            Ok(n) => {
                buffer.truncate(n);
                self.offset += n as u64;
                self.left -= n as u64;
                self.rested = false;
                Poll::Ready(Some(Ok(buffer.into())))
            }
            Err(e) => {
                self.left = 0;
                Poll::Ready(Some(Err(failed_io(&self.path, &e))))
            }
        }
    }
}
