//! move: within a file system a rename; across two, a copy of a file and its removal.

use std::{
    fs::File,
    io::{self},
};

use api::{
    Code, Error, Result,
    file::{FileInfo, FileKind, MoveRequest},
};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, StatxFlags, Uid, fchmod, fchown, renameat, symlinkat, unlinkat},
    io::Errno,
};

use super::{
    Place, describe, failed, failed_io, kind, list, make_directories, open_at, remove, split, write,
};
use crate::{
    inside::{Depth, Inside},
    worker::Worker,
};

/// Descriptors held while copying down.
const DEPTH_MAX: usize = 256;

pub async fn rename(inside: &Inside, request: MoveRequest) -> Result<FileInfo> {
    let temporary = format!(".dsec-move-{}", api::RequestId::new());
    let renamed = rename_by(inside, &request, &temporary).await;
    if renamed.as_ref().is_err_and(|e| e.code == Code::OomKilled) {
        // Who was killed could not undo.
        write::discard(inside, &request.to, request.user.as_deref(), temporary).await;
    }
    renamed
}

async fn rename_by(inside: &Inside, request: &MoveRequest, temporary: &str) -> Result<FileInfo> {
    Worker::call(inside, Depth::Files, request.user.as_deref(), |job| {
        let (from, to) = (job.absolute(&request.from), job.absolute(&request.to));
        let source = Place::of(&from)?;
        source.stat().map_err(|e| failed(&from, e))?;
        if let Some((parent, _)) = split(to.as_bytes()) {
            make_directories(&String::from_utf8_lossy(parent), 0o755)?;
        }
        let target = Place::of(&to)?;
        match renameat(&source.directory, source.name(), &target.directory, target.name()) {
            Ok(()) => {}
            // overlayfs says so of a directory that lies in a layer.
            Err(Errno::XDEV) => across(&source, &from, &target, &to, temporary)?,
            Err(Errno::INVAL) => return Err(Error::invalid(format!("`{to}`: lies in `{from}` itself"))),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(Error::new(
                    Code::AlreadyExists,
                    format!("`{to}`: is there already and not empty"),
                ));
            }
            Err(e @ (Errno::ISDIR | Errno::NOTDIR | Errno::NOSPC | Errno::DQUOT)) => {
                return Err(failed(&to, e));
            }
            Err(e) => return Err(failed(&from, e)),
        }
        let stat = target.stat().map_err(|e| failed(&to, e))?;
        Ok(describe(to.as_bytes(), &stat, None))
    })
    .await
}

/// Copies beside the target, then puts the copy in its place: nothing that was there is touched before all is there, and a
/// failure leaves both sides as they were.
fn across(source: &Place, from: &str, target: &Place, to: &str, temporary: &str) -> Result<()> {
    if is_mount_point(source).map_err(|e| failed(from, e))? {
        return Err(failed(from, Errno::BUSY));
    }
    let temporary = Place {
        directory: target.directory.try_clone().map_err(|e| failed_io(to, &e))?,
        name: temporary.as_bytes().to_vec(),
    };
    let placed = copy(source, &temporary, to, 0).and_then(|()| {
        renameat(&temporary.directory, temporary.name(), &target.directory, target.name()).map_err(
            |e| match e {
                Errno::NOTEMPTY | Errno::EXIST => {
                    Error::new(Code::AlreadyExists, format!("`{to}`: is there already and not empty"))
                }
                e => failed(to, e),
            },
        )
    });
    if placed.is_err() {
        let _ = discard(&temporary, to);
        return placed;
    }
    discard(source, from)
}

/// A directory on another file system than the one that it is a name in.
fn is_mount_point(place: &Place) -> rustix::io::Result<bool> {
    let stat = place.stat()?;
    Ok(kind(&stat) == FileKind::Directory
        && mount_of(place, Some(place.name.as_slice()))? != mount_of(place, None)?)
}

/// The kernel's number of the mount that a place, or a name in it, is on.
fn mount_of(place: &Place, name: Option<&[u8]>) -> rustix::io::Result<u64> {
    let flags =
        AtFlags::SYMLINK_NOFOLLOW | if name.is_none() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let stat = rustix::fs::statx(&place.directory, name.unwrap_or_default(), flags, StatxFlags::MNT_ID)?;
    Ok(stat.stx_mnt_id)
}

fn discard(source: &Place, path: &str) -> Result<()> {
    match unlinkat(&source.directory, source.name(), AtFlags::empty()) {
        Err(Errno::ISDIR) => remove::tree(&source.directory, &source.name, path, 0),
        done => done.map_err(|e| failed(path, e)),
    }
}

/// Copies a file, a link or a tree, with modes and (as far as allowed) owners.
fn copy(source: &Place, target: &Place, path: &str, depth: usize) -> Result<()> {
    let fail = |e| failed(path, e);
    let stat = source.stat().map_err(fail)?;
    match kind(&stat) {
        FileKind::File => copy_file(source, target, &stat, path),
        FileKind::Symlink => {
            let to = rustix::fs::readlinkat(&source.directory, source.name(), Vec::new()).map_err(fail)?;
            symlinkat(to, &target.directory, target.name()).map_err(fail)
        }
        FileKind::Directory if depth < DEPTH_MAX => {
            rustix::fs::mkdirat(&target.directory, target.name(), Mode::from_raw_mode(0o700))
                .map_err(fail)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let from = open_at(&source.directory, source.name(), flags, 0).map_err(fail)?;
            let into = open_at(&target.directory, target.name(), flags, 0).map_err(fail)?;
            for name in list::names(&from, path)? {
                let again = |fd: &std::os::fd::OwnedFd| fd.try_clone().map_err(|e| failed_io(path, &e));
                let inner = Place { directory: again(&from)?, name: name.clone() };
                copy(&inner, &Place { directory: again(&into)?, name }, path, depth + 1)?;
            }
            keep_attributes(&into, &stat).map_err(fail)
        }
        _ => Err(Error::invalid(format!(
            "`{path}`: only files, links and directories move across file systems"
        ))),
    }
}

fn copy_file(source: &Place, target: &Place, stat: &Stat, path: &str) -> Result<()> {
    let fail = |e| failed(path, e);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let from = open_at(&source.directory, source.name(), flags, 0).map_err(fail)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let into = open_at(&target.directory, target.name(), flags, 0o600).map_err(fail)?;
    let into = File::from(into);
    io::copy(&mut File::from(from), &mut &into).map_err(|e| failed_io(path, &e))?;
    keep_attributes(&into, stat).map_err(fail)
}

fn keep_attributes(fd: impl std::os::fd::AsFd, stat: &Stat) -> rustix::io::Result<()> {
    match fchown(&fd, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))) {
        // Only root gives files away.
        Ok(()) | Err(Errno::PERM) => {}
        Err(e) => return Err(e),
    }
    fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777))
}
