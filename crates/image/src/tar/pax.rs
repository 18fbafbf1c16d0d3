//! PAX records: `length key=value\n`, values being any bytes.
//!
//! Invariant: a key that we act on and cannot read is an error, never ignored.

use super::sparse::PaxSparse;
use crate::error::{Error, Result};

/// The records that we act on.
#[derive(Default)]
pub struct Pax {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<(i64, u32)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sparse: PaxSparse,
}

impl Pax {
    pub fn parse(mut data: &[u8]) -> Result<Self> {
        let mut pax = Self::default();
        while !data.is_empty() && data[0] != 0 {
            let (key, value, rest) = record(data).ok_or_else(damaged)?;
            pax.take(key, value)?;
            data = rest;
        }
        Ok(pax)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattrs.push((name.to_vec(), value.to_vec()));
            return Ok(());
        }
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value)?),
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(damaged)?),
            _ => {
                if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.take(key, value)?;
                }
            }
        }
        Ok(())
    }
}

/// The first record: key, value and what follows.
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&data[..space]).ok()?).ok()?;
    let body = data.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], &data[length..]))
}

pub fn decimal(text: &[u8]) -> Result<u64> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(damaged)
}

/// Seconds with a fraction; the fraction of a negative time counts downwards.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}

fn damaged() -> Error {
    Error::refused("the archive is damaged: a PAX header cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_any_bytes() {
        let pax = Pax::parse(b"30 mtime=1700000000.123456789\n29 SCHILY.xattr.user.a=x\n=\0y\n").unwrap();
        assert_eq!(pax.mtime, Some((1_700_000_000, 123_456_789)));
        assert_eq!(pax.xattrs, [(b"user.a".to_vec(), b"x\n=\0y".to_vec())]);
    }

    #[test]
    fn times() {
        assert_eq!(time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"7"), Some((7, 0)));
        assert_eq!(time(b"1.x"), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            &b"x"[..],
            b"5 a=b",
            b"99 a=b\n",
            b"0 a=b\n",
            b"6 abc\n",
            b"18446744073709551615 a=b\n",
            b"11 size=-1\n",
        ] {
            assert!(Pax::parse(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
