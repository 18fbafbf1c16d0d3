//! write: whole or not at all.
//!
//! ```text
//! child: opens or makes, passes the descriptor ->  agent: streams the body into it
//! child: waits; `C`: renames over the target   <-  agent: commits, or drops (then the child undoes)
//! ```
//! Where the file system is memory the child passes a pipe and writes by itself, so that what it writes counts as the
//! sandbox's: the agent's own memory has no limit.
//!
//! A file that cannot be replaced in its directory (the directory is not the user's, or the file is a mount point)
//! is written in place instead; only then can a broken upload leave a part.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use api::{
    Code, Error, Result,
    arrow::ByteStream,
    file::{FileInfo, FileKind, WriteQuery},
};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, ftruncate, renameat, unlinkat},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};

use tokio::io::Interest;

use super::{Place, describe, failed, failed_io, kind, make_directories, open_at, remove, split};
use crate::{
    chronus::tar::put::feed,
    heap::TrimAfter,
    inside::{Depth, Inside},
    process,
    worker::{Job, Worker},
};

const MODE_DEFAULT: u32 = 0o644;

pub async fn write(inside: &Inside, query: WriteQuery, body: ByteStream) -> Result<FileInfo> {
    let temporary = format!(".dsec-upload-{}", api::RequestId::new());
    let written = write_by(inside, &query, &temporary, body).await;
    if written.as_ref().is_err_and(|e| e.code == Code::OomKilled) {
        // Who was killed could not undo.
        discard(inside, &query.path, query.user.as_deref(), temporary).await;
    }
    written
}

/// Removes what a helper that was killed had made beside `path`, if it had.
pub(super) async fn discard(inside: &Inside, path: &str, user: Option<&str>, temporary: String) {
    let discarded = Worker::call_uncharged(inside, user, |job| {
        let place = Place::followed(&job.absolute(path))?;
        match unlinkat(&place.directory, temporary.as_str(), AtFlags::empty()) {
            Err(Errno::ISDIR) => remove::tree(&place.directory, temporary.as_bytes(), path, 0),
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed(path, e)),
        }
    });
    if let Err(error) = discarded.await {
        eprintln!("aether: what a killed helper made stays: {error}");
    }
}

async fn write_by(
    inside: &Inside,
    query: &WriteQuery,
    temporary: &str,
    body: ByteStream,
) -> Result<FileInfo> {
    let mut worker = Worker::run(inside, Depth::Files, query.user.as_deref(), Vec::new(), |job| {
        child(job, query, temporary)
    })
    .await?;
    // If the body breaks, the child takes back what it made.
    worker.let_undo();
    let (by_child, fds) = worker.answer::<bool>().await?;
    let fd = fds.into_iter().next().ok_or_else(|| Error::internal("a file without its descriptor"))?;
    let _trim = TrimAfter;
    if by_child {
        if !pump(body, fd).await? {
            // It reads no more: its answer says why.
            return Err(match worker.next::<FileInfo>().await {
                Err(error) => error,
                Ok(_) => Error::internal("a helper process answered out of turn"),
            });
        }
    } else {
        stream(&query.path, body, &fd).await?;
        drop(fd);
    }
    // The child of a pipe may not have written all; then its answer comes instead of a reader of this.
    let _ = worker.commit().await;
    Ok(worker.answer().await?.0)
}

/// Into the child's pipe. False: it has closed its end.
async fn pump(mut body: ByteStream, fd: OwnedFd) -> Result<bool> {
    let fail = |e: io::Error| Error::internal(format!("cannot use a pipe: {}", e.kind()));
    rustix::io::ioctl_fionbio(&fd, true).map_err(|e| fail(e.into()))?;
    let pipe = process::ready(fd, Interest::WRITABLE).map_err(fail)?;
    while let Some(chunk) = std::future::poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        if !feed(&pipe, &chunk?).await {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the body. The descriptor is of a regular file, so this waits for nothing but the disk.
async fn stream(path: &str, mut body: ByteStream, fd: &OwnedFd) -> Result<()> {
    while let Some(chunk) = std::future::poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        let chunk = chunk?;
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            match rustix::io::write(fd, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(path, e)),
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// How the bytes get to the target.
enum Way {
    /// Into a new file beside it, then over it.
    Replace { temporary: String, fd: OwnedFd, before: Option<Stat>, mode: u32 },
    /// Into the file itself, from this length on.
    InPlace { fd: OwnedFd, length: u64 },
}

fn child(job: &mut Job, query: &WriteQuery, temporary: &str) -> Result<()> {
    let path = job.absolute(&query.path);
    if path.ends_with('/') {
        return Err(Error::new(Code::IsDirectory, format!("`{path}`: names a directory")));
    }
    if let Some((parent, _)) = split(path.as_bytes()) {
        make_directories(&String::from_utf8_lossy(parent), 0o755)?;
    }
    let place = Place::followed(&path)?;
    let before = existing(&place, &path)?;
    let mode = query.mode.unwrap_or(MODE_DEFAULT) & 0o7777;
    let way = if query.append { append(&place, mode) } else { replace(&place, before, mode, temporary) };
    let way = way.map_err(|e| failed(&path, e))?;
    let fd = match &way {
        Way::Replace { fd, .. } | Way::InPlace { fd, .. } => fd,
    };
    let streamed = match in_memory(job, fd) {
        true => take(job, fd).map_err(|e| failed_io(&path, &e)),
        false => job.answer(&false, &[fd.as_fd()]),
    };
    if streamed.is_err() || !job.committed() {
        undo(&place, &way);
        return streamed;
    }
    if let Err(error) = finish(&place, &way) {
        undo(&place, &way);
        return Err(failed(&path, error));
    }
    let stat = place.stat().map_err(|e| failed(&path, e))?;
    job.answer(&describe(path.as_bytes(), &stat, None), &[])
}

/// Whether what is written to `fd` is memory.
fn in_memory(job: &Job, fd: &OwnedFd) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
    match rustix::fs::fstatfs(fd).map(|stat| stat.f_type) {
        Ok(TMPFS_MAGIC) => true,
        Ok(OVERLAYFS_MAGIC) => job.inside.root_in_memory,
        _ => false,
    }
}

/// Writes what comes through a pipe, to its end.
fn take(job: &Job, fd: &OwnedFd) -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    job.answer(&true, &[write.as_fd()]).map_err(io::Error::other)?;
    drop(write);
    io::copy(&mut File::from(read), &mut File::from(fd.try_clone()?)).map(drop)
}

/// The file that is there and may be written by this user. Errors: it is something else, or may not.
fn existing(place: &Place, path: &str) -> Result<Option<Stat>> {
    let stat = match place.stat() {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(failed(path, e)),
    };
    match kind(&stat) {
        FileKind::File => {}
        FileKind::Directory => {
            return Err(Error::new(Code::IsDirectory, format!("`{path}`: is a directory")));
        }
        other => return Err(Error::invalid(format!("`{path}`: is no regular file but a {other:?}"))),
    }
    match open_at(&place.directory, place.name(), OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, 0) {
        // A program that runs can be replaced.
        Ok(_) | Err(Errno::TXTBSY) => Ok(Some(stat)),
        Err(e) => Err(failed(path, e)),
    }
}

fn append(place: &Place, mode: u32) -> rustix::io::Result<Way> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match open_at(&place.directory, place.name(), flags, 0) {
        Err(Errno::NOENT) => {
            let fd = open_at(&place.directory, place.name(), flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            fchmod(&fd, Mode::from_raw_mode(mode))?;
            fd
        }
        opened => opened?,
    };
    let length = fstat(&fd)?.st_size.max(0) as u64;
    Ok(Way::InPlace { fd, length })
}

fn replace(place: &Place, before: Option<Stat>, mode: u32, temporary: &str) -> rustix::io::Result<Way> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let made = open_at(&place.directory, temporary, flags, 0o600);
    let fd = match (made, before) {
        (Ok(fd), before) => match keep_owner(&fd, before) {
            Ok(()) => {
                let mode = before.map_or(mode, |b| b.st_mode & 0o7777);
                return Ok(Way::Replace { temporary: temporary.to_owned(), fd, before, mode });
            }
            Err(e) => {
                let _ = unlinkat(&place.directory, temporary, AtFlags::empty());
                if e != Errno::PERM || before.is_none() {
                    return Err(e);
                }
                // Another's file that this user may write: it stays that other's.
                in_place(place)?
            }
        },
        (Err(Errno::ACCESS | Errno::PERM), Some(_)) => in_place(place)?,
        (Err(e), _) => return Err(e),
    };
    Ok(Way::InPlace { fd, length: 0 })
}

fn in_place(place: &Place) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    open_at(&place.directory, place.name(), flags, 0)
}

/// Gives the new file the owner of the one before.
fn keep_owner(fd: &OwnedFd, before: Option<Stat>) -> rustix::io::Result<()> {
    let (Some(before), own) = (before, fstat(fd)?) else { return Ok(()) };
    if (own.st_uid, own.st_gid) == (before.st_uid, before.st_gid) {
        return Ok(());
    }
    fchown(fd, Some(Uid::from_raw(before.st_uid)), Some(Gid::from_raw(before.st_gid)))
}

fn finish(place: &Place, way: &Way) -> rustix::io::Result<()> {
    let Way::Replace { temporary, fd, before, mode } = way else { return Ok(()) };
    // Last, since each write takes setuid and setgid away.
    fchmod(fd, Mode::from_raw_mode(*mode))?;
    match renameat(&place.directory, temporary.as_str(), &place.directory, place.name()) {
        // A mount point, as /etc/resolv.conf may be.
        Err(Errno::BUSY) if before.is_some() => {
            let mut target = File::from(in_place(place)?);
            let mut source = File::from(fd.try_clone().map_err(|_| Errno::MFILE)?);
            let copied = io::Seek::rewind(&mut source).and_then(|()| io::copy(&mut source, &mut target));
            copied.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            unlinkat(&place.directory, temporary.as_str(), AtFlags::empty())
        }
        done => done,
    }
}

fn undo(place: &Place, way: &Way) {
    // Best effort: the caller hears of the first error.
    let _ = match way {
        Way::Replace { temporary, .. } => unlinkat(&place.directory, temporary.as_str(), AtFlags::empty()),
        Way::InPlace { fd, length } => ftruncate(fd, *length),
    };
}
