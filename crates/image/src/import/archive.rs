//! Feeds a tar to the writer: prefix, owner, and in OCI layers the whiteouts.
//!
//! Invariant: whiteouts take effect after the layer's own entries, for they speak of the layers below only.

use std::io::{self, Read};

use super::Options;
use crate::{
    erofs::{Entry, Kind, Writer},
    error::{Error, Result, show},
    tar::{TarEntry, TarKind, TarReader},
};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Other names of aufs's own.
const RESERVED: &[u8] = b".wh..wh.";

/// What an OCI layer removes from those below it.
#[derive(Default)]
pub struct Whiteouts {
    pub removed: Vec<Vec<u8>>,
    pub opaque: Vec<Vec<u8>>,
}

pub struct Feeder<'a> {
    pub options: &'a Options,
    pub writer: &'a mut Writer,
    /// Some: names that begin with `.wh.` are whiteouts.
    pub whiteouts: Option<Whiteouts>,
    /// What it has met of an image's own parts, where those make it no file system.
    pub suspect: Option<Suspect>,
}

/// Signs that a tar is an archive of images and not a file system. Which files come first is not fixed, so this may be
/// known only at the end.
#[derive(Default)]
pub struct Suspect {
    manifest: bool,
    layout: bool,
    archive: bool,
}

impl Suspect {
    fn see(&mut self, path: &[u8]) {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        match path {
            b"manifest.json" => self.manifest = true,
            b"oci-layout" => self.layout = true,
            _ => self.archive |= path.ends_with(b".tar") && path.iter().filter(|b| **b == b'/').count() < 2,
        }
    }

    fn judge(&self) -> Result<()> {
        if self.layout || (self.manifest && self.archive) {
            return Err(Error::refused(
                "format: this is an archive of images, known as such only at its end: import it as `oci_archive`, or as \
                 `tar` if it is a file system all the same",
            ));
        }
        Ok(())
    }
}

impl Feeder<'_> {
    /// Reads the archive to the end of the stream; gives the whiteouts back.
    pub fn feed(mut self, stream: impl Read) -> Result<Whiteouts> {
        let mut tar = TarReader::new(stream);
        while let Some(entry) = tar.next_entry()? {
            self.suspect.iter_mut().for_each(|suspect| suspect.see(&entry.path));
            self.one(entry, &mut tar)?;
        }
        self.suspect.as_ref().map_or(Ok(()), Suspect::judge)?;
        // What follows the end mark is padding, but a compressed stream's own checksum comes after it.
        io::copy(&mut tar.into_rest(), &mut io::sink()).map_err(Error::of_reader)?;
        Ok(self.whiteouts.unwrap_or_default())
    }

    fn one(&mut self, entry: TarEntry, tar: &mut TarReader<impl Read>) -> Result<()> {
        let path = self.options.place(&entry.path);
        if let Some(whiteouts) = &mut self.whiteouts {
            let (parent, name) = split(&path);
            if name.starts_with(WHITEOUT) {
                self.writer.tree().charge(path.len())?;
            }
            if name == OPAQUE {
                whiteouts.opaque.push(parent.to_vec());
                return Ok(());
            }
            if name.starts_with(RESERVED) {
                return Ok(());
            }
            if let Some(hidden) = name.strip_prefix(WHITEOUT) {
                if matches!(hidden, b"" | b"." | b"..") {
                    return Err(Error::refused(format!("{}: a whiteout of nothing", show(&path))));
                }
                whiteouts.removed.push([parent, hidden].join(&b'/'));
                return Ok(());
            }
        }
        let kind = match entry.kind {
            TarKind::File => Kind::File,
            TarKind::Directory => Kind::Directory,
            TarKind::Symlink => Kind::Symlink(entry.link),
            TarKind::Hardlink => Kind::Hardlink(self.options.place(&entry.link)),
            TarKind::Char => Kind::Char { major: entry.major, minor: entry.minor },
            TarKind::Block => Kind::Block { major: entry.major, minor: entry.minor },
            TarKind::Fifo => Kind::Fifo,
        };
        let (uid, gid) = self.options.owned(entry.uid, entry.gid);
        let entry = Entry {
            path,
            kind,
            mode: entry.mode,
            uid,
            gid,
            mtime_s: entry.mtime_s,
            mtime_ns: entry.mtime_ns,
            xattrs: entry.xattrs,
        };
        self.writer.add(entry, tar)
    }
}

/// Parent and last name; a slash at the end is no name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
