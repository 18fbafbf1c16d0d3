//! Takes gzip or zstd off a stream, by its first bytes, and bounds what comes out.
//!
//! Invariant: whatever is read here has been counted; a bomb ends in an error, not in a full disk.

use std::io::{self, BufReader, Cursor, Read};

use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 256 << 10;
/// How far a first look may reach.
const PEEK_BYTES: usize = 64 << 10;

/// Compressions that are known and not taken, by their first bytes.
const FOREIGN: [(&[u8], &str); 3] =
    [(&[0xfd, b'7', b'z', b'X'], "xz"), (b"BZh", "bzip2"), (&[0x04, 0x22, 0x4d, 0x18], "lz4")];

/// A decompressed, counted, buffered stream whose beginning can be looked at.
pub struct Stream<'a> {
    /// Whether its bytes are the source's own.
    pub is_plain: bool,
    peeked: Cursor<Vec<u8>>,
    inner: BufReader<Bounded<Box<dyn Read + 'a>>>,
}

/// Opens `source`, whose first bytes tell how it is compressed.
pub fn open<'a>(mut source: impl Read + 'a, bytes_max: u64) -> Result<Stream<'a>> {
    let head = read_up_to(&mut source, 4).map_err(Error::of_reader)?;
    if head.is_empty() {
        return Err(Error::refused("the archive is empty"));
    }
    for (magic, name) in FOREIGN {
        if head.starts_with(magic) {
            let message = format!("the archive is compressed with {name}: use gzip, zstd, or none");
            return Err(Error::refused(message));
        }
    }
    let is_gzip = head.starts_with(&[0x1f, 0x8b]);
    let is_zstd = head == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = Cursor::new(head).chain(source);
    let inner: Box<dyn Read + 'a> = if is_gzip {
        Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
    } else if is_zstd {
        Box::new(zstd::Decoder::new(whole).map_err(Error::disk("start the zstd decoder"))?)
    } else {
        Box::new(whole)
    };
    let inner = BufReader::with_capacity(BUFFER_BYTES, Bounded { inner, left: bytes_max });
    Ok(Stream { is_plain: !is_gzip && !is_zstd, peeked: Cursor::new(Vec::new()), inner })
}

impl Stream<'_> {
    /// The first bytes, which will be read again.
    pub fn peek(&mut self) -> Result<&[u8]> {
        if self.peeked.get_ref().is_empty() {
            self.peeked = Cursor::new(read_up_to(&mut self.inner, PEEK_BYTES).map_err(Error::of_reader)?);
        }
        Ok(self.peeked.get_ref())
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.peeked.read(out)? {
            0 => self.inner.read(out),
            n => Ok(n),
        }
    }
}

fn read_up_to(source: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    source.take(bytes as u64).read_to_end(&mut head)?;
    Ok(head)
}

struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        let left = self.left.checked_sub(n as u64);
        self.left = left.ok_or_else(|| {
            Error::refused("the archive, decompressed, is larger than this node accepts in one import")
                .into_io()
        })?;
        Ok(n)
    }
}
