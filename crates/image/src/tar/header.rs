//! The 512-byte header: fixed fields, octal or base 256.
//!
//! Invariant: a header whose checksum does not match is refused before any field of it is believed.

use crate::error::{Error, Result};

pub const BLOCK: usize = 512;

/// The fields we use.
pub struct Header {
    pub path: Vec<u8>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub mtime: i64,
    pub flag: u8,
    pub link: Vec<u8>,
    pub major: u32,
    pub minor: u32,
}

impl Header {
    pub fn parse(block: &[u8; BLOCK]) -> Result<Self> {
        check_sum(block)?;
        let flag = block[156];
        let is_ustar = &block[257..263] == b"ustar\0";
        let is_tar = is_ustar || &block[257..263] == b"ustar ";
        let mut path = field(&block[0..100]).to_vec();
        let prefix = field(&block[345..500]);
        if is_ustar && !prefix.is_empty() {
            path = [prefix, b"/", &path].concat();
        }
        let small = |at: std::ops::Range<usize>| {
            let value = unsigned(&block[at])?;
            u32::try_from(value).map_err(|_| damaged())
        };
        let is_device = is_tar && matches!(flag, b'3' | b'4');
        Ok(Self {
            path,
            mode: (unsigned(&block[100..108])? & 0o7777) as u32,
            uid: unsigned(&block[108..116])?,
            gid: unsigned(&block[116..124])?,
            size: unsigned(&block[124..136])?,
            mtime: number(&block[136..148])?,
            flag,
            link: field(&block[157..257]).to_vec(),
            major: if is_device { small(329..337)? } else { 0 },
            minor: if is_device { small(337..345)? } else { 0 },
        })
    }
}

fn check_sum(block: &[u8; BLOCK]) -> Result<()> {
    let said = number(&block[148..156])?;
    let bytes =
        || block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
    let sum: i64 = bytes().map(i64::from).sum();
    // Some old programs summed signed bytes.
    let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
    if said == sum || said == signed { Ok(()) } else { Err(damaged()) }
}

fn damaged() -> Error {
    Error::refused("the archive is damaged, or not a tar (plain, gzip or zstd)")
}

fn field(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number that cannot be negative.
pub fn unsigned(bytes: &[u8]) -> Result<u64> {
    u64::try_from(number(bytes)?).map_err(|_| damaged())
}

/// Octal digits within blanks and NULs, or base 256 where the first bit is set (the second is the sign).
pub fn number(bytes: &[u8]) -> Result<i64> {
    let first = bytes.first().copied().unwrap_or_default();
    if first & 0x80 != 0 {
        let negative = first & 0x40 != 0;
        let start: i128 = if negative { -1 } else { 0 };
        let mut value = start;
        for (at, byte) in bytes.iter().enumerate() {
            let byte = match at {
                0 if negative => *byte | 0x80,
                0 => *byte & 0x7f,
                _ => *byte,
            };
            value = (value << 8) | i128::from(byte);
            if i64::try_from(value).is_err() {
                return Err(damaged());
            }
        }
        return i64::try_from(value).map_err(|_| damaged());
    }
    let text = bytes.trim_ascii_start();
    let end = text.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(text.len());
    text[..end].iter().try_fold(0i64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        let next = value.checked_mul(8).and_then(|v| v.checked_add(i64::from(digit)));
        next.filter(|_| digit < 8).ok_or_else(damaged)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0000644\0").unwrap(), 0o644);
        assert_eq!(number(b"   644 \0").unwrap(), 0o644);
        assert_eq!(number(b"\0\0\0\0\0\0\0\0").unwrap(), 0);
        assert_eq!(number(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).unwrap(), 0xffff_ffff);
        assert_eq!(number(&[0xff; 12]).unwrap(), -1);
        assert!(number(b"0000648\0").is_err());
        assert!(number(&[0x80, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "past 63 bits");
        assert!(unsigned(&[0xff; 12]).is_err());
    }
}
