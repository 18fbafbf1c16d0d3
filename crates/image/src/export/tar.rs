//! A tar writer: ustar, with a PAX header for what does not fit (long names, big numbers, fractions, xattrs).
//!
//! Invariant: no clock and no names of users, so equal entries make equal bytes.

use std::io::{Read, Write};

use crate::error::{Error, Result};

const BLOCK: usize = 512;
const NAME_BYTES_MAX: usize = 100;
/// Seven and eleven octal digits.
const ID_MAX: u64 = 0o7_777_777;
const LONG_MAX: u64 = 0o77_777_777_777;
const BUFFER_BYTES: usize = 64 << 10;

/// What stands before an entry's data.
#[derive(Debug, Default)]
pub struct Header<'a> {
    pub path: &'a [u8],
    /// `0` file, `1` hard link, `2` symlink, `3` char, `4` block, `5` directory, `6` fifo.
    pub flag: u8,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub link: &'a [u8],
    pub major: u32,
    pub minor: u32,
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

pub struct TarWriter<W> {
    out: W,
}

impl<W: Write> TarWriter<W> {
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Starts an entry; as many bytes as its size are due next, by [`TarWriter::data`].
    pub fn header(&mut self, header: &Header<'_>) -> Result<()> {
        let records = pax_records(header);
        if !records.is_empty() {
            let about = Header {
                path: b"PaxHeaders",
                flag: b'x',
                mode: 0o644,
                size: records.len() as u64,
                ..Header::default()
            };
            self.put(&block(&about))?;
            self.put(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.put(&block(header))
    }

    /// `size` bytes of `data`, which must have them.
    pub fn data(&mut self, data: &mut dyn Read, size: u64) -> Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(size).unwrap_or(BUFFER_BYTES))];
        let mut left = size;
        while left > 0 {
            let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            match data.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(Error::Damaged("a file ends before its size")),
                Ok(n) => {
                    self.put(&buffer[..n])?;
                    left -= n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::of_reader(e)),
            }
        }
        self.pad(size)
    }

    /// An entry of bytes that are at hand, readable to all.
    pub fn file(&mut self, path: &[u8], bytes: &[u8]) -> Result<()> {
        let size = bytes.len() as u64;
        self.header(&Header { path, flag: b'0', mode: 0o644, size, ..Header::default() })?;
        self.data(&mut &*bytes, size)
    }

    /// A directory, open to all.
    pub fn directory(&mut self, path: &[u8]) -> Result<()> {
        self.header(&Header { path, flag: b'5', mode: 0o755, ..Header::default() })
    }

    /// What lies under it, between entries.
    pub fn inner(&mut self) -> &mut W {
        &mut self.out
    }

    /// The end mark.
    pub fn finish(mut self) -> Result<W> {
        self.put(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Error::of_writer)
    }

    fn pad(&mut self, size: u64) -> Result<()> {
        let over = (size % BLOCK as u64) as usize;
        self.put(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }
}

fn fits_time(header: &Header<'_>) -> bool {
    header.mtime_ns == 0 && u64::try_from(header.mtime_s).is_ok_and(|s| s <= LONG_MAX)
}

/// What does not fit the fixed fields is left empty there: its PAX record counts.
fn block(header: &Header<'_>) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut text = |at: usize, bytes: &[u8]| {
        let kept = &bytes[..bytes.len().min(NAME_BYTES_MAX)];
        block[at..at + kept.len()].copy_from_slice(kept);
    };
    text(0, header.path);
    text(157, header.link);
    text(257, b"ustar\x0000");
    block[156] = header.flag;
    let mut octal = |at: usize, digits: usize, value: u64| {
        let value = if value >> (3 * digits) == 0 { value } else { 0 };
        block[at..at + digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
    };
    octal(100, 7, header.mode.into());
    octal(108, 7, header.uid.into());
    octal(116, 7, header.gid.into());
    octal(124, 11, header.size);
    octal(136, 11, u64::try_from(header.mtime_s).unwrap_or_default());
    octal(329, 7, header.major.into());
    octal(337, 7, header.minor.into());
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn pax_records(header: &Header<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = |key: &str, value: u64, max: u64| {
        if value > max {
            record(&mut out, key.as_bytes(), value.to_string().as_bytes());
        }
    };
    number("uid", header.uid.into(), ID_MAX);
    number("gid", header.gid.into(), ID_MAX);
    number("size", header.size, LONG_MAX);
    if header.path.len() > NAME_BYTES_MAX {
        record(&mut out, b"path", header.path);
    }
    if header.link.len() > NAME_BYTES_MAX {
        record(&mut out, b"linkpath", header.link);
    }
    if !fits_time(header) {
        record(&mut out, b"mtime", time(header.mtime_s, header.mtime_ns).as_bytes());
    }
    for (name, value) in header.xattrs {
        record(&mut out, &[b"SCHILY.xattr.", &**name].concat(), value);
    }
    out
}

/// `length key=value\n`, where the length counts its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(length.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Decimal seconds; the fraction of a negative time counts downwards.
fn time(seconds: i64, nanos: u32) -> String {
    if nanos == 0 {
        return seconds.to_string();
    }
    let (sign, whole, fraction) = match seconds {
        0.. => ("", seconds.unsigned_abs(), nanos),
        _ => ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
    };
    let digits = format!("{fraction:09}");
    format!("{sign}{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::{TarKind, TarReader};

    #[test]
    fn what_is_written_is_read() {
        let long = [b'n'; 300];
        let xattrs = vec![
            (b"user.empty".to_vec(), Vec::new()),
            (b"user.any".to_vec(), b"\0\n=\xff".to_vec()),
            (b"user.big".to_vec(), vec![7; 65_535]),
        ];
        for (mtime_s, mtime_ns) in [
            (0, 0),
            (5, 0),
            (-1, 0),
            (-1, 500_000_000),
            (-2, 750_000_000),
            (1 << 40, 1),
            (i64::MIN, 1),
            (i64::MAX, 999_999_999),
        ] {
            for (path, link) in
                [(&b"short"[..], &b"l"[..]), (&long[..100], &long[..101]), (&long, &long), (b"\xff ", b"")]
            {
                let header = Header {
                    path,
                    link,
                    flag: b'3',
                    mode: 0o7777,
                    uid: u32::MAX,
                    gid: 2_097_152,
                    mtime_s,
                    mtime_ns,
                    major: 4095,
                    minor: (1 << 20) - 1,
                    xattrs: &xattrs,
                    ..Header::default()
                };
                let mut tar = TarWriter::new(Vec::new());
                tar.header(&header).unwrap();
                tar.file(b"f", b"data").unwrap();
                let bytes = tar.finish().unwrap();
                let mut reader = TarReader::new(&bytes[..]);
                let entry = reader.next_entry().unwrap().unwrap();
                assert_eq!((&*entry.path, &*entry.link, entry.kind), (path, link, TarKind::Char));
                assert_eq!((entry.mode, entry.uid, entry.gid), (0o7777, u32::MAX, 2_097_152));
                assert_eq!((entry.mtime_s, entry.mtime_ns), (mtime_s, mtime_ns));
                assert_eq!((entry.major, entry.minor), (4095, (1 << 20) - 1));
                assert_eq!(entry.xattrs, xattrs);
                let file = reader.next_entry().unwrap().unwrap();
                assert_eq!((&*file.path, file.size), (&b"f"[..], 4));
                assert!(reader.next_entry().unwrap().is_none());
            }
        }
    }

    #[test]
    fn a_size_past_eight_gibibytes_is_told() {
        let mut tar = TarWriter::new(Vec::new());
        tar.header(&Header { path: b"f", flag: b'0', size: 9 << 30, ..Header::default() }).unwrap();
        let entry = TarReader::new(&tar.inner()[..]).next_entry().unwrap().unwrap();
        assert_eq!(entry.size, 9 << 30);
    }

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for value in [0usize, 1, 90, 91, 92, 93, 94, 95, 990, 991, 992, 993] {
            let mut out = Vec::new();
            record(&mut out, b"key", &vec![b'v'; value]);
            let length: usize =
                std::str::from_utf8(&out).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(length, out.len(), "{value}");
        }
    }

    #[test]
    fn data_that_is_short_is_an_error() {
        let mut tar = TarWriter::new(Vec::new());
        assert!(matches!(tar.data(&mut &b"abc"[..], 4), Err(Error::Damaged(_))));
    }
}
