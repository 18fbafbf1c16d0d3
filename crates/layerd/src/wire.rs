//! The FUSE protocol, as far as a read-only tree of three levels needs it: requests out of bytes, answers into bytes.
//!
//! Ours and not a crate's, because a worker that takes over a connection must not begin with its handshake again.

use std::io::IoSlice;

/// What the kernel wants a reader's buffer to hold at least; requests here are far smaller.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// One answer: what `MAX_PAGES` allows.
pub const READ_BYTES_MAX: u32 = 1 << 20;
const HEADER_BYTES: usize = 40;

pub const ENOENT: i32 = 2;
pub const EIO: i32 = 5;
pub const ENOSYS: i32 = 38;

/// A request and who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub unique: u64,
    pub node: u64,
    pub ask: Ask,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    Init {
        minor: u32,
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: String,
    },
    Attributes,
    Open,
    Read {
        offset: u64,
        size: u32,
    },
    /// Nothing in it.
    ReadDir,
    Statfs,
    /// Answered with nothing.
    Done,
    /// Not answered.
    Silent,
    Unknown,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// None: not a request, as the kernel never sends one.
pub fn parse(bytes: &[u8]) -> Option<Request> {
    let (unique, node) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    let body = bytes.get(HEADER_BYTES..)?;
    let ask = match u32_at(bytes, 4)? {
        1 => Ask::Lookup { name: String::from_utf8_lossy(body.split(|b| *b == 0).next()?).into_owned() },
        2 | 36 | 42 => Ask::Silent,
        3 => Ask::Attributes,
        14 | 27 => Ask::Open,
        15 => Ask::Read { offset: u64_at(body, 8)?, size: u32_at(body, 16)? },
        17 => Ask::Statfs,
        18 | 25 | 29 | 38 => Ask::Done,
        26 => {
            Ask::Init { minor: u32_at(body, 4)?, max_readahead: u32_at(body, 8)?, flags: u32_at(body, 12)? }
        }
        28 => Ask::ReadDir,
        _ => Ask::Unknown,
    };
    Some(Request { unique, node, ask })
}

/// What a file or directory looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub node: u64,
    pub size: u64,
    pub is_directory: bool,
}

/// How long the kernel may believe an answer about a name or an attribute: both are what a digest says, for ever; but
/// the layer may be removed.
const VALID_S: u64 = 60;

impl Attributes {
    fn write(&self, to: &mut Vec<u8>) {
        let words = [self.node, self.size, self.size.div_ceil(512), 0, 0, 0];
        words.iter().for_each(|w| to.extend(w.to_ne_bytes()));
        let (mode, links) = if self.is_directory { (0o040_500, 2) } else { (0o100_400, 1) };
        let words: [u32; 10] = [0, 0, 0, mode, links, 0, 0, 0, 4096, 0];
        words.iter().for_each(|w| to.extend(w.to_ne_bytes()));
    }

    /// The answer to a look-up.
    pub fn entry(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        [self.node, 0, VALID_S, VALID_S, 0].iter().for_each(|w| out.extend(w.to_ne_bytes()));
        self.write(&mut out);
        out
    }

    /// The answer to a stat.
    pub fn stat(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(104);
        [VALID_S, 0].iter().for_each(|w| out.extend(w.to_ne_bytes()));
        self.write(&mut out);
        out
    }
}

/// ASYNC_READ, ASYNC_DIO, PARALLEL_DIROPS, MAX_PAGES.
const FLAGS: u32 = 1 | 1 << 15 | 1 << 18 | 1 << 22;
const MINOR: u32 = 31;
const BACKGROUND_MAX: u16 = 64;

/// The answer to the handshake.
pub fn init(minor: u32, max_readahead: u32, flags: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    for word in [7, minor.min(MINOR), max_readahead, flags & FLAGS] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(BACKGROUND_MAX.to_ne_bytes());
    out.extend((BACKGROUND_MAX * 3 / 4).to_ne_bytes());
    // max_write, time_gran.
    [4096u32, 1].iter().for_each(|w| out.extend(w.to_ne_bytes()));
    out.extend(((READ_BYTES_MAX / 4096) as u16).to_ne_bytes());
    out.resize(64, 0);
    out
}

/// The answer to an open: the kernel may keep what it has cached, for it never changes.
pub fn opened() -> Vec<u8> {
    let mut out = vec![0; 16];
    out[8..12].copy_from_slice(&2u32.to_ne_bytes());
    out
}

pub fn statfs() -> Vec<u8> {
    vec![0; 80]
}

/// The head of an answer of `body_bytes`; `error` is an errno, or 0.
pub fn head(unique: u64, error: i32, body_bytes: usize) -> [u8; 16] {
    let mut head = [0; 16];
    head[..4].copy_from_slice(&((16 + body_bytes) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&(-error).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// "Send again what was read and not answered."
pub fn resend() -> [u8; 16] {
    const FUSE_NOTIFY_RESEND: i32 = 7;
    head(0, -FUSE_NOTIFY_RESEND, 0)
}

/// Head and parts, to be written at once.
pub fn slices<'a>(head: &'a [u8; 16], parts: &'a [bytes::Bytes]) -> Vec<IoSlice<'a>> {
    std::iter::once(IoSlice::new(head)).chain(parts.iter().map(|part| IoSlice::new(part))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(node.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_read_and_short_ones_are_none() {
        let read = [0u64.to_ne_bytes(), 8192u64.to_ne_bytes(), 4096u64.to_ne_bytes()].concat();
        let parsed = parse(&request(15, 9, &read)).unwrap();
        assert_eq!(parsed, Request { unique: 7, node: 9, ask: Ask::Read { offset: 8192, size: 4096 } });
        assert_eq!(parse(&request(1, 1, b"abc\0")).unwrap().ask, Ask::Lookup { name: "abc".into() });
        assert_eq!(parse(&request(4000, 1, b"")).unwrap().ask, Ask::Unknown);
        for short in 0..HEADER_BYTES {
            assert!(parse(&request(15, 9, b"")[..short]).is_none());
        }
        assert!(parse(&request(15, 9, &read[..10])).is_none());
    }

    #[test]
    fn answers_have_the_sizes_of_the_protocol() {
        let attributes = Attributes { node: 1, size: 5000, is_directory: false };
        assert_eq!((attributes.entry().len(), attributes.stat().len()), (128, 104));
        assert_eq!((init(45, 1, u32::MAX).len(), opened().len(), statfs().len()), (64, 16, 80));
        assert_eq!(head(3, EIO, 0), *[16u32, -5i32 as u32, 3, 0].map(u32::to_ne_bytes).as_flattened());
        assert_eq!(resend()[4..8], 7i32.to_ne_bytes());
    }
}
