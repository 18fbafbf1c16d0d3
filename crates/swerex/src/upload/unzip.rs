//! A zip made a tar, as `ZipFile.extractall` would unpack it: names lose what leads up or to the root, there are files
//! and directories and nothing else, and modes are the usual ones.
//!
//! Bytes of a stranger: entries and what they grow to have bounds.

use std::{
    fs::File,
    io::{self, Read},
};

use tar::{Builder, EntryType, Header};
use zip::ZipArchive;

use super::Sink;
use crate::fault::{Exception, Fault};

const ENTRIES_MAX: usize = 100_000;
/// Of all that is unpacked.
const BYTES_MAX: u64 = 8 << 30;

pub(super) fn open(file: File) -> Result<ZipArchive<File>, Fault> {
    let archive = ZipArchive::new(file).map_err(|_| bad("File is not a zip file"))?;
    if archive.len() > ENTRIES_MAX {
        return Err(bad(&format!("over {ENTRIES_MAX} entries")));
    }
    Ok(archive)
}

fn bad(message: &str) -> Fault {
    Fault::raised(Exception::BadZip, message)
}

/// Blocks.
pub(super) fn as_tar(mut archive: ZipArchive<File>, sink: Sink) -> io::Result<()> {
    let mut tar = Builder::new(sink);
    let mut left = BYTES_MAX;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(io::Error::other)?;
        let is_directory = entry.is_dir();
        let Some(name) = safe(entry.name()) else { continue };
        let size = if is_directory { 0 } else { entry.size() };
        left = left
            .checked_sub(size)
            .ok_or_else(|| io::Error::other(format!("unpacks to over {BYTES_MAX} bytes")))?;
        let mut header = Header::new_gnu();
        header.set_entry_type(if is_directory { EntryType::Directory } else { EntryType::Regular });
        header.set_mode(if is_directory { 0o755 } else { 0o644 });
        header.set_size(size);
        if is_directory {
            tar.append_data(&mut header, name, io::empty())?;
        } else {
            // Exactly what its header says, so that the tar stays whole whatever the entry unpacks to.
            tar.append_data(&mut header, name, Exactly { inner: entry.take(size), left: size })?;
        }
    }
    tar.finish()
}

/// `extractall`'s name: empty parts, `.` and `..` are left out. None where nothing is left.
fn safe(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
    (!parts.is_empty() && !name.contains('\0')).then(|| parts.join("/"))
}

/// A reader whose early end is an error.
struct Exactly<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left -= count as u64;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other("an entry is shorter than it says"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn names_stay_inside() {
        assert_eq!(safe("a/b").as_deref(), Some("a/b"));
        assert_eq!(safe("/etc/passwd").as_deref(), Some("etc/passwd"));
        assert_eq!(safe("../../x/./y//z").as_deref(), Some("x/y/z"));
        assert_eq!((safe("../.."), safe(""), safe("a\0b")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_zip_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            let _ = open(file);
        }
    }
}
