//! watch: a child that lives as long as the client looks, reads inotify and reports.
//!
//! It blocks when the client is slow; then the kernel's own queue fills, and says so by `overflow`.

use std::{collections::HashMap, mem::MaybeUninit, os::fd::OwnedFd};

use api::{
    Error, Result,
    arrow::BoxStream,
    file::{FileKind, WatchEvent, WatchKind, WatchQuery},
    payload::Payload,
};
use rustix::{
    fs::{
        OFlags,
        inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    },
    io::Errno,
};
use tokio::sync::mpsc;

use super::{failed, kind, list, open, open_at};
use crate::{
    inside::{Depth, Inside},
    worker::{Job, Worker},
};

/// Directories of one recursive watch: each costs kernel memory.
const DIRECTORIES_MAX: usize = 8192;
/// Their paths, taken as long as the longest.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Events on their way to the client.
const EVENTS_IN_FLIGHT: usize = 64;

pub async fn watch(inside: &Inside, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>> {
    let mut worker =
        Worker::run(inside, Depth::Files, query.user.as_deref(), Vec::new(), |job| child(job, &query))
            .await?;
    worker.answer::<()>().await?;
    let (events, stream) = mpsc::channel(EVENTS_IN_FLIGHT);
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = worker.next::<WatchEvent>() => next,
                // The client has left: the worker is dropped, its child killed.
                () = events.closed() => return,
            };
            let last = next.is_err();
            if events.send(next.map(|(event, _)| event)).await.is_err() || last {
                return;
            }
        }
    });
    Ok(Box::pin(crate::chronus::channel_stream(stream)))
}

/// Watched directories by descriptor: their path relative to the root of the watch.
struct Watched {
    inotify: OwnedFd,
    root: OwnedFd,
    directories: HashMap<i32, Vec<u8>>,
    recursive: bool,
}

fn child(job: &mut Job, query: &WatchQuery) -> Result<()> {
    let path = job.absolute(&query.path);
    let fail = |e| failed(&path, e);
    let root = open(path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, 0).map_err(
        |e| match e {
            Errno::NOTDIR => Error::invalid(format!("`{path}`: is not a directory")),
            e => fail(e),
        },
    )?;
    let inotify = inotify::init(CreateFlags::CLOEXEC).map_err(fail)?;
    let mut watched = Watched { inotify, root, directories: HashMap::new(), recursive: query.recursive };
    watched
        .add(Vec::new(), &mut |_| Ok(()))
        .map_err(|e| Error { message: format!("`{path}`: {}", e.message), ..e })?;
    job.answer(&(), &[])?;
    watched.report(job)
}

impl Watched {
    /// Watches a directory and, if asked, those below it. `found` is told of every name in those below.
    fn add(&mut self, relative: Vec<u8>, found: &mut dyn FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let text_bytes: usize = self.directories.len() * relative.len();
        if self.directories.len() >= DIRECTORIES_MAX || text_bytes > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "over {DIRECTORIES_MAX} directories to watch: watch its parts"
            )));
        }
        let shown = String::from_utf8_lossy(&relative).into_owned();
        let at = if relative.is_empty() { b".".to_vec() } else { relative.clone() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let directory = match open_at(&self.root, at, flags, 0) {
            Ok(directory) => directory,
            // Gone, or closed to the user: nothing to watch.
            Err(_) if !relative.is_empty() => return Ok(()),
            Err(e) => return Err(failed(&shown, e)),
        };
        // inotify takes a path: the working directory is the one way to give it a descriptor.
        rustix::process::fchdir(&directory).map_err(|e| failed(&shown, e))?;
        let events = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let id =
            inotify::add_watch(&self.inotify, ".", events | WatchFlags::ONLYDIR).map_err(|e| match e {
                Errno::NOSPC => Error::invalid("the kernel's limit of watches is reached"),
                e => failed(&shown, e),
            })?;
        self.directories.insert(id, relative.clone());
        if !self.recursive {
            return Ok(());
        }
        for name in list::names(&directory, &shown)? {
            let inner = join(&relative, &name);
            found(inner.clone())?;
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let is_directory = rustix::fs::statat(&directory, name.as_slice(), flags)
                .is_ok_and(|stat| kind(&stat) == FileKind::Directory);
            if is_directory {
                self.add(inner, found)?;
            }
        }
        Ok(())
    }

    /// Reports until the client has left.
    fn report(&mut self, job: &Job) -> Result<()> {
        let tell = |kind, name: Vec<u8>| job.answer(&WatchEvent { kind, name: Payload::from(name) }, &[]);
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        loop {
            let fd = self.inotify.try_clone().map_err(|e| Error::internal(e.to_string()))?;
            let mut reader = inotify::Reader::new(fd, &mut buffer);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err(Error::internal(e.to_string())),
                };
                let flags = event.events();
                if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                    tell(WatchKind::Overflow, Vec::new())?;
                } else if flags.contains(ReadFlags::IGNORED) {
                    self.directories.remove(&event.wd());
                } else if let (Some(kind), Some(directory)) =
                    (meaning(flags), self.directories.get(&event.wd()))
                {
                    let name = join(directory, event.file_name().map_or(&[], |n| n.to_bytes()));
                    let appeared = matches!(kind, WatchKind::Created | WatchKind::MovedTo);
                    tell(kind, name.clone())?;
                    if appeared && self.recursive && flags.contains(ReadFlags::ISDIR) {
                        // Before what happened later is told: what was made in it before it was watched.
                        self.add(name, &mut |name| tell(WatchKind::Created, name))?;
                    }
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => directory.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

fn meaning(flags: ReadFlags) -> Option<WatchKind> {
    Some(match flags {
        f if f.contains(ReadFlags::CREATE) => WatchKind::Created,
        f if f.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) => WatchKind::Modified,
        f if f.contains(ReadFlags::DELETE) => WatchKind::Removed,
        f if f.contains(ReadFlags::MOVED_FROM) => WatchKind::MovedFrom,
        f if f.contains(ReadFlags::MOVED_TO) => WatchKind::MovedTo,
        _ => return None,
    })
}
