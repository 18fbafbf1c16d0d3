//! tar_get: a directory as a stream. Names byte for byte, modes, numeric owners, times, links as links.
//!
//! Devices, sockets and pipes are left out. A file that changes while it is read keeps the size that its header told.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
    sync::Arc,
};

use api::{
    Error, Result,
    arrow::ByteStream,
    file::{FileKind, TarQuery},
};
use bytes::Bytes;
use rustix::{
    fs::{Access, AtFlags, OFlags, Stat, accessat, fstat, readlinkat, statat},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};
use tar::{Builder, EntryType, Header};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use crate::{
    chronus::file::{failed, failed_io, kind, list, open, open_at},
    heap::TrimAfter,
    inside::{Depth, Inside},
    process,
    worker::{Job, Worker},
};

/// Descriptors held while walking down.
const DEPTH_MAX: usize = 256;
/// What a tar header can name of a link's target.
const LINK_BYTES: usize = 100;
/// Files with several names that are remembered, to pack the second as a link.
const LINKED_MAX: usize = 100_000;
/// Of their names.
const LINKED_BYTES_MAX: usize = 16 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_IN_FLIGHT: usize = 4;

pub async fn get(inside: &Inside, query: TarQuery) -> Result<ByteStream> {
    let fail = |e: io::Error| Error::internal(format!("cannot make a pipe: {}", e.kind()));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    rustix::io::ioctl_fionbio(&read, true).map_err(|e| fail(e.into()))?;
    let mut worker =
        Worker::run(inside, Depth::Files, query.user.as_deref(), vec![write], |job| child(job, &query.path))
            .await?;
    worker.answer::<()>().await?;
    let read = process::ready(read, Interest::READABLE).map_err(fail)?;
    let (chunks, stream) = mpsc::channel(CHUNKS_IN_FLIGHT);
    tokio::spawn(async move {
        let _trim = TrimAfter;
        if let Err(error) = relay(&read, &mut worker, &chunks).await {
            let _ = chunks.send(Err(error)).await;
        }
    });
    Ok(Box::pin(crate::chronus::channel_stream(stream)))
}

/// Until the pipe ends; then the child says whether that was all.
async fn relay(
    read: &AsyncFd<OwnedFd>,
    worker: &mut Worker,
    chunks: &mpsc::Sender<Result<Bytes>>,
) -> Result<()> {
    let fail = |e: io::Error| Error::internal(format!("tar: {}", e.kind()));
    loop {
        let mut guard = tokio::select! {
            guard = read.readable() => guard.map_err(fail)?,
            () = chunks.closed() => return Ok(()),
        };
        let mut buffer = vec![0; CHUNK_BYTES];
        match rustix::io::read(read.get_ref(), &mut buffer) {
            Ok(0) => return worker.next::<()>().await.map(drop),
            Ok(n) => {
                buffer.truncate(n);
                if chunks.send(Ok(buffer.into())).await.is_err() {
                    return Ok(());
                }
            }
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(fail(e.into())),
        }
    }
}

fn child(job: &mut Job, path: &str) -> Result<()> {
    let path = job.absolute(path);
    let root = open(path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, 0).map_err(
        |e| match e {
            Errno::NOTDIR => Error::invalid(format!("`{path}`: is not a directory")),
            e => failed(&path, e),
        },
    )?;
    let pipe = job.fds.pop().ok_or_else(|| Error::internal("a tar without its pipe"))?;
    // Before a byte is on its way: an error in the middle could only break the stream.
    check(&root, &[], &path, 0)?;
    job.answer(&(), &[])?;
    let mut packer = Packer {
        tar: Builder::new(BufWriter::with_capacity(CHUNK_BYTES, File::from(pipe))),
        linked: HashMap::new(),
        linked_bytes: 0,
    };
    packer.directory(&root, &[], &path, 0)?;
    let done = packer.tar.into_inner().and_then(|mut out| out.flush());
    done.map_err(|e| failed_io(&path, &e))?;
    job.answer(&(), &[])
}

/// Errors: what below `directory` this user may not read, by its name.
fn check(directory: &OwnedFd, relative: &[u8], shown: &str, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid(format!("`{shown}`: over {DEPTH_MAX} directories deep")));
    }
    for name in list::names(directory, shown)? {
        let inner = if relative.is_empty() { name.clone() } else { [relative, b"/", &name].concat() };
        let shown = String::from_utf8_lossy(&inner).into_owned();
        let checked =
            statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).and_then(|stat| {
                match kind(&stat) {
                    FileKind::File => {
                        accessat(directory, name.as_slice(), Access::READ_OK, AtFlags::empty()).map(|()| None)
                    }
                    FileKind::Directory => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                        open_at(directory, name.as_slice(), flags, 0).map(Some)
                    }
                    _ => Ok(None),
                }
            });
        match checked {
            Ok(Some(inside)) => check(&inside, &inner, &shown, depth + 1)?,
            Ok(None) | Err(Errno::NOENT) => {}
            Err(e) => return Err(failed(&shown, e)),
        }
    }
    Ok(())
}

struct Packer {
    tar: Builder<BufWriter<File>>,
    /// (device, inode) -> its first name in the archive.
    linked: HashMap<(u64, u64), Arc<[u8]>>,
    linked_bytes: usize,
}

impl Packer {
    fn directory(&mut self, directory: &OwnedFd, relative: &[u8], shown: &str, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("`{shown}`: over {DEPTH_MAX} directories deep")));
        }
        for name in list::names(directory, shown)? {
            let inner = if relative.is_empty() { name.clone() } else { [relative, b"/", &name].concat() };
            let stat = match statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(failed(&String::from_utf8_lossy(&inner), e)),
            };
            self.entry(directory, &name, &inner, &stat, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat, depth: usize) -> Result<()> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let fail = |e| failed(&shown, e);
        match kind(stat) {
            FileKind::Directory => {
                self.put(header(stat, EntryType::Directory, 0), &[path, b"/"].concat(), io::empty())?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                let directory = open_at(parent, name, flags, 0).map_err(fail)?;
                self.directory(&directory, path, &shown, depth + 1)
            }
            FileKind::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).map_err(fail)?;
                self.link(header(stat, EntryType::Symlink, 0), path, target.as_bytes())
            }
            FileKind::File => {
                if let Some(first) = self.first_name(stat, path) {
                    return self.link(header(stat, EntryType::Link, 0), path, &first);
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let fd = open_at(parent, name, flags, 0).map_err(fail)?;
                let stat = fstat(&fd).map_err(fail)?;
                let size = stat.st_size.max(0) as u64;
                self.put(
                    header(&stat, EntryType::Regular, size),
                    path,
                    Exactly { file: File::from(fd), left: size },
                )
            }
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Ok(()),
        }
    }

    /// The name under which this very file was packed before.
    fn first_name(&mut self, stat: &Stat, path: &[u8]) -> Option<Arc<[u8]>> {
        if stat.st_nlink < 2 {
            return None;
        }
        let key = (stat.st_dev, stat.st_ino);
        let first = self.linked.get(&key).cloned();
        if first.is_none() && self.linked.len() < LINKED_MAX && self.linked_bytes < LINKED_BYTES_MAX {
            self.linked_bytes += path.len();
            self.linked.insert(key, path.into());
        }
        first
    }

    fn put(&mut self, mut header: Header, path: &[u8], data: impl Read) -> Result<()> {
        let done = self.tar.append_data(&mut header, Path::new(std::ffi::OsStr::from_bytes(path)), data);
        done.map_err(|e| failed_io(&String::from_utf8_lossy(path), &e))
    }

    fn link(&mut self, mut header: Header, path: &[u8], target: &[u8]) -> Result<()> {
        let fail = |e: io::Error| failed_io(&String::from_utf8_lossy(path), &e);
        if target.len() <= LINK_BYTES {
            header.set_link_name_literal(target).map_err(fail)?;
            return self.put(header, path, io::empty());
        }
        let as_path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
        self.tar.append_link(&mut header, as_path(path), as_path(target)).map_err(fail)
    }
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(stat.st_mtime.max(0) as u64);
    header
}

/// As many bytes as were promised: cut, or filled with zeros, if the file changed meanwhile.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.left.min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..length];
        let mut count = self.file.read(buffer)?;
        if count == 0 {
            buffer.fill(0);
            count = length;
        }
        self.left -= count as u64;
        Ok(count)
    }
}
