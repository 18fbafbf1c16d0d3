//! A directory as a tar stream, made while it is sent: bounded memory, nothing staged.
//!
//! The walk runs on a blocking thread and waits while the receiver is slow; when the receiver leaves, it ends. Entries
//! come in name order, so the same tree gives the same bytes.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use api::{Error, Result, arrow::ByteStream};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use crate::sandbox::tree::{CHUNK_BYTES, local};

/// Chunks that wait for a slow receiver.
const CHUNKS_IN_FLIGHT: usize = 16;
/// Directories below directories.
const DEPTH_MAX: usize = 1000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pack {
    /// A root file system: owners, hard links, devices, extended attributes. Else only contents, links and modes.
    pub(crate) metadata: bool,
}

/// What is in `directory`, as a tar.
pub(crate) fn stream(directory: &Path, pack: Pack) -> ByteStream {
    let directory = directory.to_owned();
    chunks(move |chunks| Walk::new(chunks, pack).run(&directory))
}

/// What `write` writes on a thread that may block; it waits while the receiver is slow, and fails where that has left.
pub(crate) fn chunks(write: impl FnOnce(io::BufWriter<Chunks>) -> Result<()> + Send + 'static) -> ByteStream {
    let (sender, receiver) = mpsc::channel::<Result<Bytes>>(CHUNKS_IN_FLIGHT);
    tokio::task::spawn_blocking(move || {
        let chunks = io::BufWriter::with_capacity(CHUNK_BYTES, Chunks(sender.clone()));
        if let Err(e) = write(chunks) {
            // A receiver that left needs no news.
            let _ = sender.blocking_send(Err(e));
        }
    });
    stream::unfold(receiver, |mut r| async move { r.recv().await.map(|chunk| (chunk, r)) }).boxed()
}

pub(crate) struct Chunks(mpsc::Sender<Result<Bytes>>);

impl Write for Chunks {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(data)));
        sent.map(|()| data.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Walk<W: Write> {
    tar: tar::Builder<W>,
    pack: Pack,
    /// The first name of each file with more than one.
    names: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Walk<W> {
    fn new(sink: W, pack: Pack) -> Self {
        let mut tar = tar::Builder::new(sink);
        tar.follow_symlinks(false);
        Self { tar, pack, names: HashMap::new() }
    }

    fn run(mut self, root: &Path) -> Result<()> {
        let metadata = fs::metadata(root).map_err(|e| local("reading", root, &e))?;
        if self.pack.metadata {
            // The root's own owner and mode.
            self.entry(root, Path::new("."), &metadata)?;
        }
        self.directory(root, Path::new(""), 0)?;
        self.tar.into_inner().and_then(|mut sink| sink.flush()).map_err(|e| local("packing", root, &e))
    }

    fn directory(&mut self, path: &Path, name: &Path, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("{} is over {DEPTH_MAX} directories deep", path.display())));
        }
        let at = |e: &io::Error| local("reading", path, e);
        let entries = fs::read_dir(path).map_err(|e| at(&e))?;
        let mut names: Vec<OsString> =
            entries.map(|e| e.map(|e| e.file_name())).collect::<io::Result<_>>().map_err(|e| at(&e))?;
        names.sort();
        for entry in names {
            let (path, name) = (path.join(&entry), name.join(&entry));
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                // Removed since the listing: as if never there.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(local("reading", &path, &e)),
            };
            self.entry(&path, &name, &metadata)?;
            if metadata.is_dir() {
                self.directory(&path, &name, depth + 1)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, metadata: &fs::Metadata) -> Result<()> {
        self.append(path, name, metadata).map_err(|e| local("packing", path, &e))
    }

    fn append(&mut self, path: &Path, name: &Path, metadata: &fs::Metadata) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_metadata(metadata);
        if !self.pack.metadata {
            header.set_uid(0);
            header.set_gid(0);
        }
        let kind = metadata.file_type();
        if kind.is_symlink() {
            header.set_size(0);
            return self.tar.append_link(&mut header, name, fs::read_link(path)?);
        }
        if kind.is_dir() {
            self.attributes(path)?;
            header.set_size(0);
            return self.tar.append_data(&mut header, name, io::empty());
        }
        if kind.is_file() {
            return self.file(path, name, metadata, header);
        }
        // Sockets have no meaning in an archive; devices and fifos only in a root file system.
        if !self.pack.metadata || kind.is_socket() {
            return Ok(());
        }
        header.set_device_major(rdev_major(metadata.rdev()))?;
        header.set_device_minor(rdev_minor(metadata.rdev()))?;
        header.set_size(0);
        self.tar.append_data(&mut header, name, io::empty())
    }

    fn file(
        &mut self,
        path: &Path,
        name: &Path,
        metadata: &fs::Metadata,
        mut header: tar::Header,
    ) -> io::Result<()> {
        if self.pack.metadata && metadata.nlink() > 1 {
            let key = (metadata.dev(), metadata.ino());
            if let Some(first) = self.names.get(&key) {
                header.set_entry_type(tar::EntryType::Link);
                header.set_size(0);
                return self.tar.append_link(&mut header, name, first);
            }
            self.names.insert(key, name.to_owned());
        }
        let file = fs::File::open(path)?;
        self.attributes(path)?;
        // A file that grows meanwhile is cut at its size of the start; one that shrinks is an error, not zeros.
        let size = metadata.len();
        header.set_size(size);
        let mut exact = Exact { file, left: size };
        self.tar.append_data(&mut header, name, &mut exact)
    }

    /// Extended attributes, in a record before the entry.
    fn attributes(&mut self, path: &Path) -> io::Result<()> {
        if !self.pack.metadata {
            return Ok(());
        }
        let mut records = Vec::new();
        for key in xattr::list(path).into_iter().flatten() {
            let carried = key.as_bytes().starts_with(b"user.") || key.as_bytes() == b"security.capability";
            if let (true, Some(key), Ok(Some(value))) = (carried, key.to_str(), xattr::get(path, &key)) {
                records.push((format!("SCHILY.xattr.{key}"), value));
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        self.tar.append_pax_extensions(records.iter().map(|(k, v)| (k.as_str(), v.as_slice())))
    }
}

/// Exactly `left` bytes of a file, or an error.
struct Exact {
    file: fs::File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut buffer[..size])?;
        if read == 0 && size > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file shrank while it was read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

// dev_t as glibc splits it.
fn rdev_major(dev: u64) -> u32 {
    (((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff)) as u32
}
fn rdev_minor(dev: u64) -> u32 {
    ((dev & 0xff) | ((dev >> 12) & !0xff)) as u32
}
