//! list: a directory, some levels down, by name. Links are told, never followed.

use std::os::fd::OwnedFd;

use api::{
    Error, Result,
    file::{FileInfo, FileKind, FileListQuery},
};
use rustix::{
    fs::{AtFlags, Dir, OFlags, readlinkat, statat},
    io::Errno,
};

use super::{describe, failed, kind, open, open_at};
use crate::{
    inside::{Depth, Inside},
    worker::Worker,
};

/// Entries of one answer: more is a question that was too wide.
pub const ENTRIES_MAX: usize = 100_000;
/// Paths and link targets of one answer: in a deep tree each path is long.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Descriptors held while walking down.
const DEPTH_MAX: u32 = 256;

pub async fn list(inside: &Inside, query: FileListQuery) -> Result<Vec<FileInfo>> {
    Worker::call(inside, Depth::Files, query.user.as_deref(), |job| {
        let path = job.absolute(&query.path);
        let fd = open(path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, 0).map_err(
            |e| match e {
                Errno::NOTDIR => Error::invalid(format!("`{path}`: is not a directory")),
                e => failed(&path, e),
            },
        )?;
        let mut found = Found::default();
        walk(fd, path.as_bytes(), query.depth.clamp(1, DEPTH_MAX), &mut found)?;
        Ok(found.entries)
    })
    .await
}

#[derive(Default)]
struct Found {
    entries: Vec<FileInfo>,
    text_bytes: usize,
}

fn walk(directory: OwnedFd, path: &[u8], depth: u32, found: &mut Found) -> Result<()> {
    let shown = String::from_utf8_lossy(path).into_owned();
    for name in names(&directory, &shown)? {
        if found.entries.len() >= ENTRIES_MAX || found.text_bytes > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "`{}`: over {ENTRIES_MAX} entries or {TEXT_BYTES_MAX} bytes of paths: list its parts",
                shown.chars().take(200).collect::<String>()
            )));
        }
        let full = [path.strip_suffix(b"/").unwrap_or(path), b"/", name.as_slice()].concat();
        let stat = match statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was read.
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(failed(&String::from_utf8_lossy(&full), e)),
        };
        let target = match kind(&stat) {
            FileKind::Symlink => {
                readlinkat(&directory, name.as_slice(), Vec::new()).ok().map(|t| t.into_bytes())
            }
            _ => None,
        };
        found.text_bytes += full.len() + target.as_ref().map_or(0, Vec::len);
        found.entries.push(describe(&full, &stat, target));
        if depth > 1 && kind(&stat) == FileKind::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            match open_at(&directory, name.as_slice(), flags, 0) {
                Ok(inner) => walk(inner, &full, depth - 1, found)?,
                // What the user may not see is told as a name alone.
                Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(failed(&String::from_utf8_lossy(&full), e)),
            }
        }
    }
    Ok(())
}

/// The names in a directory, sorted, without `.` and `..`.
pub fn names(directory: &OwnedFd, shown: &str) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(|e| failed(shown, e))? {
        let entry = entry.map_err(|e| failed(shown, e))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
        if names.len() > ENTRIES_MAX {
            return Err(Error::invalid(format!("`{shown}`: over {ENTRIES_MAX} entries")));
        }
    }
    names.sort_unstable();
    Ok(names)
}
