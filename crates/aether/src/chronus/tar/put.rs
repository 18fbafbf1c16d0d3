//! tar_put: a stream into a directory, and nowhere else.
//!
//! Refused: `..`, absolute names, names that lead out through a link (one of the archive or one that was there),
//! hard links to outside, devices and pipes. Files belong to the user; if that is root, to whom the archive says.
//! What was unpacked before an error stays.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::fd::OwnedFd,
};

use api::{
    Code, Error, Result,
    arrow::ByteStream,
    file::{TarQuery, TarReport},
};
use rustix::{
    fs::{
        AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown,
        futimens, linkat, mkdirat, openat2, symlinkat, unlinkat,
    },
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};
use tar::{Archive, Entry, EntryType};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    chronus::file::{failed, failed_io, make_directories, open, open_at},
    heap::TrimAfter,
    inside::{Depth, Inside},
    process,
    worker::{Job, Worker},
};

/// Entries of one archive: a bound on what one request can make the kernel hold.
const ENTRIES_MAX: u64 = 1 << 20;
const CHUNK_BYTES: usize = 64 << 10;

pub async fn put(inside: &Inside, query: TarQuery, mut body: ByteStream) -> Result<TarReport> {
    let fail = |e: io::Error| Error::internal(format!("cannot make a pipe: {}", e.kind()));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    rustix::io::ioctl_fionbio(&write, true).map_err(|e| fail(e.into()))?;
    let mut worker =
        Worker::run(inside, Depth::Files, query.user.as_deref(), vec![read], |job| child(job, &query.path))
            .await?;
    let write = process::ready(write, Interest::WRITABLE).map_err(fail)?;
    let _trim = TrimAfter;
    while let Some(chunk) = std::future::poll_fn(|cx| body.as_mut().poll_next(cx)).await {
        if !feed(&write, &chunk?).await {
            // The child has seen enough: its answer says why.
            break;
        }
    }
    drop(write);
    worker.next().await.map(|(report, _)| report)
}

/// False: nobody reads any more.
pub(crate) async fn feed(pipe: &AsyncFd<OwnedFd>, mut data: &[u8]) -> bool {
    while !data.is_empty() {
        let Ok(mut guard) = pipe.writable().await else { return false };
        match rustix::io::write(pipe.get_ref(), data) {
            Ok(n) => data = &data[n..],
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

fn child(job: &mut Job, path: &str) -> Result<()> {
    let path = job.absolute(path);
    make_directories(&path, 0o755)?;
    let root = open(path.as_str(), OFlags::PATH | OFlags::DIRECTORY, 0).map_err(|e| failed(&path, e))?;
    let pipe = job.fds.pop().ok_or_else(|| Error::internal("a tar without its pipe"))?;
    let as_root = job.account.uid == 0;
    let mut unpacker = Unpacker { root, as_root, report: TarReport::default(), modes: Vec::new() };
    let bad = |e: io::Error| Error::invalid(format!("tar: {e}"));
    let mut archive = Archive::new(BufReader::with_capacity(CHUNK_BYTES, File::from(pipe)));
    for entry in archive.entries().map_err(bad)? {
        unpacker.entry(entry.map_err(bad)?)?;
    }
    unpacker.finish()?;
    job.answer(&unpacker.report, &[])
}

struct Unpacker {
    root: OwnedFd,
    as_root: bool,
    report: TarReport,
    /// Modes of directories made here, set at the end: one may close a directory to its own contents.
    modes: Vec<(Vec<u8>, u32)>,
}

/// A name of the archive as names below the directory. None: the directory itself.
fn clean(name: &[u8]) -> Result<Option<Vec<u8>>> {
    let refuse = |why: &str| Error::invalid(format!("tar: `{}`: {why}", String::from_utf8_lossy(name)));
    if name.starts_with(b"/") {
        return Err(refuse("absolute names are refused"));
    }
    let parts: Vec<&[u8]> = name.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    if parts.contains(&&b".."[..]) {
        return Err(refuse("`..` is refused"));
    }
    if name.contains(&0) {
        return Err(refuse("a name holds a NUL"));
    }
    Ok((!parts.is_empty()).then(|| parts.join(&b'/')))
}

/// Parent ("" for the directory itself) and last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl Unpacker {
    fn entry(&mut self, mut entry: Entry<impl Read>) -> Result<()> {
        let header = entry.header();
        let kind = header.entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(());
        }
        self.report.entries += 1;
        if self.report.entries > ENTRIES_MAX {
            return Err(Error::invalid(format!("tar: over {ENTRIES_MAX} entries")));
        }
        let Some(path) = clean(&entry.path_bytes())? else { return Ok(()) };
        let shown = String::from_utf8_lossy(&path).into_owned();
        let (parent, name) = split(&path);
        let directory = self.parent(parent, &shown)?;
        let fail = |e| failed(&shown, e);
        let owner = owner(header.uid().ok(), header.gid().ok());
        match kind {
            EntryType::Directory => {
                match mkdirat(&directory, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => self.modes.push((path.clone(), mode(&entry))),
                    Err(Errno::EXIST) => return self.parent(&path, &shown).map(drop),
                    Err(e) => return Err(fail(e)),
                }
                self.chown_name(&directory, name, owner).map_err(fail)
            }
            EntryType::Symlink => {
                let target = entry
                    .link_name_bytes()
                    .ok_or_else(|| Error::invalid(format!("tar: `{shown}`: no target")))?;
                clear(&directory, name).map_err(fail)?;
                symlinkat(&*target, &directory, name).map_err(fail)?;
                self.chown_name(&directory, name, owner).map_err(fail)
            }
            EntryType::Link => self.hard_link(&directory, name, &entry, &shown),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(&directory, name, &mut entry, &shown, owner)
            }
            other => Err(Error::invalid(format!("tar: `{shown}`: entries of type {other:?} are refused"))),
        }
    }

    fn hard_link(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        entry: &Entry<impl Read>,
        shown: &str,
    ) -> Result<()> {
        let fail = |e| failed(shown, e);
        let none = || Error::invalid(format!("tar: `{shown}`: no target"));
        let target = clean(&entry.link_name_bytes().ok_or_else(none)?)?.ok_or_else(none)?;
        let (parent, target_name) = split(&target);
        let from = self.parent(parent, shown)?;
        clear(directory, name).map_err(fail)?;
        linkat(&from, target_name, directory, name, AtFlags::empty()).map_err(fail)
    }

    fn file(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        entry: &mut Entry<impl Read>,
        shown: &str,
        owner: (Uid, Gid),
    ) -> Result<()> {
        let fail = |e| failed(shown, e);
        clear(directory, name).map_err(fail)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut file = File::from(open_at(directory, name, flags, 0o600).map_err(fail)?);
        let (mode, mtime) = (mode(entry), entry.header().mtime().unwrap_or(0));
        self.report.bytes += io::copy(entry, &mut file).map_err(|e| match e.raw_os_error() {
            Some(_) => failed_io(shown, &e),
            None => Error::invalid(format!("tar: `{shown}`: {e}")),
        })?;
        if self.as_root {
            lenient(fchown(&file, Some(owner.0), Some(owner.1))).map_err(fail)?;
        }
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(fail)?;
        futimens(&file, &times(mtime)).map_err(fail)
    }

    /// Opens a directory below the root, made where missing. A link on the way is followed only within the root.
    fn parent(&self, path: &[u8], shown: &str) -> Result<OwnedFd> {
        let fail = |e| match e {
            Errno::XDEV => Error::new(
                Code::InvalidArgument,
                format!("tar: `{shown}`: leads out of the directory through a link"),
            ),
            e => failed(shown, e),
        };
        match self.beneath(if path.is_empty() { b"." } else { path }) {
            Err(Errno::NOENT) => {}
            done => return done.map_err(fail),
        }
        let mut at: Option<OwnedFd> = None;
        for end in path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i).chain([path.len()]) {
            let (_, name) = split(&path[..end]);
            let made = mkdirat(at.as_ref().unwrap_or(&self.root), name, Mode::from_raw_mode(0o755));
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(fail(e)),
            }
            at = Some(self.beneath(&path[..end]).map_err(fail)?);
        }
        at.ok_or_else(|| fail(Errno::NOENT))
    }

    fn beneath(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
    }

    fn chown_name(&self, directory: &OwnedFd, name: &[u8], owner: (Uid, Gid)) -> rustix::io::Result<()> {
        if !self.as_root {
            return Ok(());
        }
        lenient(chownat(directory, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Modes of directories, deepest first.
    fn finish(&mut self) -> Result<()> {
        for (path, mode) in std::mem::take(&mut self.modes).iter().rev() {
            let shown = String::from_utf8_lossy(path).into_owned();
            let (parent, name) = split(path);
            let parent = self.parent(parent, &shown)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let done = open_at(&parent, name, flags, 0).and_then(|fd| fchmod(fd, Mode::from_raw_mode(*mode)));
            done.map_err(|e| failed(&shown, e))?;
        }
        Ok(())
    }
}

fn mode(entry: &Entry<impl Read>) -> u32 {
    entry.header().mode().unwrap_or(0o644) & 0o7777
}

/// What is there makes way, unless it is a directory.
fn clear(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// An owner that does not exist inside is no reason to refuse the file.
fn lenient(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::INVAL | Errno::PERM) => Ok(()),
        done => done,
    }
}

fn owner(uid: Option<u64>, gid: Option<u64>) -> (Uid, Gid) {
    // -1 would mean "leave it", and no id inside is that large.
    let id =
        |id: Option<u64>| id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX).unwrap_or(0);
    (Uid::from_raw(id(uid)), Gid::from_raw(id(gid)))
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below() {
        assert_eq!(clean(b"./a//b/").unwrap().unwrap(), b"a/b");
        assert_eq!(clean(b"./").unwrap(), None);
        assert_eq!(clean(b"..a/b..").unwrap().unwrap(), b"..a/b..");
        for name in [&b"../x"[..], b"/abs", b"a/../../x", b"..", b"a\0b"] {
            assert_eq!(clean(name).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
