//! ADD of an archive: a tar, plain or gzip, is unpacked; any other file is copied.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::Path,
};

use api::{Code, Error, Result};
use flate2::read::MultiGzDecoder;

use super::context::{Source, What};
use crate::sandbox::tree::local;

const MAGIC_BYTES: usize = 6;

/// Whether ADD unpacks it. Errors: `unsupported` for a compression that only other tools unpack.
pub(crate) fn is_archive(source: &Source) -> Result<bool> {
    let [entry] = source.entries.as_slice() else { return Ok(false) };
    if source.is_directory || !matches!(entry.what, What::File { .. }) {
        return Ok(false);
    }
    let at = |e: io::Error| local("reading", &entry.path, &e);
    let mut magic = Vec::new();
    File::open(&entry.path).map_err(at)?.take(MAGIC_BYTES as u64).read_to_end(&mut magic).map_err(at)?;
    let other = match magic.as_slice() {
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Some("xz"),
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        _ => None,
    };
    if let Some(name) = other {
        let message = format!("ADD of {name} data: unpack it first, or COPY it as it is");
        return Err(Error::new(Code::Unsupported, message));
    }
    let mut archive = tar::Archive::new(open(&entry.path).map_err(at)?);
    // A tar's header has a checksum: other files have none that fits.
    // Raw: a long name would be read whole, however long it says that it is.
    Ok(archive.entries().is_ok_and(|entries| matches!(entries.raw(true).next(), Some(Ok(_)))))
}

/// Its bytes, as a plain tar.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind()?;
    Ok(if is_gzip { Box::new(MultiGzDecoder::new(io::BufReader::new(file))) } else { Box::new(file) })
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::build::context::Context;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn archives_are_known_by_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let judge = |bytes: &[u8]| {
            fs::write(dir.path().join("x.tar"), bytes).unwrap();
            is_archive(&Context::open(dir.path(), "").unwrap().find("x.tar").unwrap()[0])
        };
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        tar.append_data(&mut header, "a", io::empty()).unwrap();
        let tar = tar.into_inner().unwrap();
        assert!(judge(&tar).unwrap() && judge(&gzip(&tar)).unwrap());
        for other in [&b""[..], b"x", &[0; 2048], &[b'x'; 2048], &gzip(b"text"), &[0x1f, 0x8b, 1]] {
            assert!(!judge(other).unwrap());
        }
        for compressed in [&b"\xfd7zXZ\0..."[..], b"BZh9...", b"\x28\xb5\x2f\xfd..."] {
            assert_eq!(judge(compressed).unwrap_err().code, Code::Unsupported);
        }
        // A name of terabytes, in a few bytes: it is not read to know that this is a tar.
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(1 << 40);
        header.set_cksum();
        assert!(judge(header.as_bytes()).unwrap());
        let directory = Context::open(dir.path(), "").unwrap().find(".").unwrap();
        assert!(!is_archive(&directory[0]).unwrap());
    }
}
