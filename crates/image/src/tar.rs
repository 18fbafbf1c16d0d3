//! A tar reader for hostile archives: ustar, GNU (long names, sparse) and PAX (long names, big numbers, xattrs,
//! sparse 0.0, 0.1 and 1.0).
//!
//! Why our own: every length in an archive is bounded before memory is taken for it, names stay bytes, and a
//! truncated archive is an error and not an early end.
//!
//! Invariant: [`TarReader::next_entry`] moves past whatever of the last entry's data was not read.

mod header;
mod pax;
mod sparse;

use std::io::{self, Read};

use crate::error::{Error, Result, show};
use header::{BLOCK, Header};
use pax::Pax;
use sparse::Segment;

/// A long name: past the kernel's bound on paths there is only abuse.
const LONG_NAME_BYTES_MAX: u64 = 64 << 10;
/// A PAX header: xattrs of 64 KiB each ride in it.
const PAX_BYTES_MAX: u64 = 2 << 20;
/// Headers about headers before the entry itself.
const PRELUDE_MAX: usize = 64;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TarKind {
    File,
    Hardlink,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

/// One entry. Its data is read from the [`TarReader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    pub path: Vec<u8>,
    pub kind: TarKind,
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub major: u32,
    pub minor: u32,
    /// Of the file, holes included.
    pub size: u64,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the data starts in the archive.
    pub offset: u64,
}

/// Reads a plain (uncompressed) tar. As a `Read` it gives the data of the entry last returned.
pub struct TarReader<R> {
    stream: R,
    /// Bytes taken from the stream.
    position: u64,
    /// Bytes of the current entry's data still in the stream.
    stored_left: u64,
    padding: u64,
    /// What is left of the current file as its reader sees it, in reverse order.
    segments: Vec<Segment>,
}

impl<R: Read> TarReader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, position: 0, stored_left: 0, padding: 0, segments: Vec::new() }
    }

    /// The next entry; None at the end mark. Errors: `invalid_argument` for anything malformed.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        self.skip(self.stored_left + self.padding)?;
        (self.stored_left, self.padding) = (0, 0);
        self.segments.clear();
        let mut pax = Pax::default();
        let (mut long_path, mut long_link) = (None, None);
        for _ in 0..PRELUDE_MAX {
            let mut block = [0; BLOCK];
            self.take(&mut block)?;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::parse(&block)?;
            match header.flag {
                b'x' | b'X' => pax = Pax::parse(&self.prelude(&header, PAX_BYTES_MAX)?)?,
                b'g' => drop(self.prelude(&header, PAX_BYTES_MAX)?),
                b'L' => long_path = Some(text(self.prelude(&header, LONG_NAME_BYTES_MAX)?)),
                b'K' => long_link = Some(text(self.prelude(&header, LONG_NAME_BYTES_MAX)?)),
                b'V' => self.skip(padded(header.size))?,
                _ => return self.entry(&block, header, pax, long_path, long_link).map(Some),
            }
        }
        Err(Error::refused("the archive is damaged: headers about headers without end"))
    }

    /// The rest of the stream, past the end mark: to check a compressed stream's own end, or a digest.
    pub fn into_rest(self) -> R {
        self.stream
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        header: Header,
        pax: Pax,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<TarEntry> {
        let path = pax.sparse.name.clone().or(pax.path).or(long_path).unwrap_or(header.path);
        let kind = kind_of(header.flag, &path)?;
        let has_data = kind == TarKind::File;
        let stored = if has_data || header.flag == b'D' { pax.size.unwrap_or(header.size) } else { 0 };
        self.stored_left = stored;
        self.padding = padded(stored).saturating_sub(stored);
        if stored > i64::MAX as u64 {
            return Err(Error::refused(format!("{}: impossible size", show(&path))));
        }
        let mut size = 0;
        if has_data {
            let map = if header.flag == b'S' {
                Some(self.gnu_map(block, &path)?)
            } else {
                self.pax_map(&pax.sparse, &path)?
            };
            (size, self.segments) = match map {
                Some(map) => (map.size, map.segments(self.stored_left, &path)?),
                None => (stored, vec![Segment::Data(stored)]),
            };
        }
        let (mtime_s, mtime_ns) = pax.mtime.unwrap_or((header.mtime, 0));
        let id = |value: u64| {
            u32::try_from(value)
                .map_err(|_| Error::refused(format!("{}: a user or group id past 32 bits", show(&path))))
        };
        Ok(TarEntry {
            kind,
            link: pax.link.or(long_link).unwrap_or(header.link),
            mode: header.mode,
            uid: id(pax.uid.unwrap_or(header.uid))?,
            gid: id(pax.gid.unwrap_or(header.gid))?,
            mtime_s,
            mtime_ns,
            major: header.major,
            minor: header.minor,
            size,
            xattrs: pax.xattrs,
            offset: self.position,
            path,
        })
    }

    /// The data of a header about the next header.
    fn prelude(&mut self, header: &Header, bytes_max: u64) -> Result<Vec<u8>> {
        if header.size > bytes_max {
            return Err(Error::refused(format!(
                "an entry's name or attributes take more than {bytes_max} bytes"
            )));
        }
        let mut data = vec![0; padded(header.size) as usize];
        self.take(&mut data)?;
        data.truncate(header.size as usize);
        Ok(data)
    }

    fn take(&mut self, out: &mut [u8]) -> Result<()> {
        self.stream.read_exact(out).map_err(Error::of_reader)?;
        self.position += out.len() as u64;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let skipped =
            io::copy(&mut self.stream.by_ref().take(bytes), &mut io::sink()).map_err(Error::of_reader)?;
        self.position += skipped;
        if skipped < bytes {
            return Err(Error::of_reader(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(segment) = self.segments.pop() {
            let left = match segment {
                Segment::Hole(left) | Segment::Data(left) => left,
            };
            if left == 0 {
                continue;
            }
            let wanted = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
            let n = match segment {
                Segment::Hole(left) => {
                    out[..wanted].fill(0);
                    self.segments.push(Segment::Hole(left - wanted as u64));
                    return Ok(wanted);
                }
                Segment::Data(_) => self.stream.read(&mut out[..wanted]),
            };
            match n {
                Ok(0) if wanted > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.position += n as u64;
                    self.stored_left -= n as u64;
                    self.segments.push(Segment::Data(left - n as u64));
                    return Ok(n);
                }
                Err(e) => {
                    self.segments.push(segment);
                    return Err(e);
                }
            }
        }
        Ok(0)
    }
}

fn kind_of(flag: u8, path: &[u8]) -> Result<TarKind> {
    Ok(match flag {
        // Before ustar a directory was a file with a slash at its end.
        0 | b'0' | b'7' if path.ends_with(b"/") => TarKind::Directory,
        0 | b'0' | b'7' | b'S' => TarKind::File,
        b'1' => TarKind::Hardlink,
        b'2' => TarKind::Symlink,
        b'3' => TarKind::Char,
        b'4' => TarKind::Block,
        b'5' | b'D' => TarKind::Directory,
        b'6' => TarKind::Fifo,
        _ => {
            let flag = flag.escape_ascii();
            return Err(Error::refused(format!(
                "{}: entries of type `{flag}` are not supported",
                show(path)
            )));
        }
    })
}

/// Up to the first NUL.
fn text(mut data: Vec<u8>) -> Vec<u8> {
    if let Some(end) = data.iter().position(|byte| *byte == 0) {
        data.truncate(end);
    }
    data
}

fn padded(size: u64) -> u64 {
    size.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX)
}
