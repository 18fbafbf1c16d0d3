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
    Ok(archive.entries().is_ok_and(|mut entries| matches!(entries.next(), Some(Ok(_)))))
}

/// Its bytes, as a plain tar.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind()?;
    Ok(if is_gzip { Box::new(MultiGzDecoder::new(io::BufReader::new(file))) } else { Box::new(file) })
}
