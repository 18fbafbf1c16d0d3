//! remove: a name, or a directory with all below it. Links are removed, never followed, whatever is swapped meanwhile.

use std::os::fd::OwnedFd;

use api::{Code, Error, Result, file::RemoveQuery};
use rustix::{
    fs::{AtFlags, Dir, OFlags, unlinkat},
    io::Errno,
};

use super::{Place, failed, open_at};
use crate::{inside::Inside, worker::Worker};

/// Descriptors held while walking down.
const DEPTH_MAX: usize = 512;

pub async fn remove(inside: &Inside, query: RemoveQuery) -> Result<()> {
    Worker::call_uncharged(inside, query.user.as_deref(), |job| {
        let path = job.absolute(&query.path);
        let place = Place::of(&path)?;
        match unlinkat(&place.directory, place.name(), AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(e) => return Err(failed(&path, e)),
        }
        if !query.recursive {
            return Err(Error::new(
                Code::IsDirectory,
                format!("`{path}`: is a directory: ask for `recursive`"),
            ));
        }
        tree(&place.directory, &place.name, &path, 0)
    })
    .await
}

/// Removes the directory `name` of `parent` and all below it.
pub fn tree(parent: &OwnedFd, name: &[u8], path: &str, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid(format!(
            "`{path}`: over {DEPTH_MAX} directories deep: remove its parts first"
        )));
    }
    let fail = |e| failed(path, e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = open_at(parent, name, flags, 0).map_err(fail)?;
    loop {
        let mut removed = false;
        for entry in Dir::read_from(&directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let inner = entry.file_name().to_bytes();
            if matches!(inner, b"." | b"..") {
                continue;
            }
            match unlinkat(&directory, inner, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => tree(&directory, inner, path, depth + 1)?,
                Err(e) => return Err(fail(e)),
            }
            removed = true;
        }
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // Somebody adds while we remove: as long as we make progress, go on.
            Err(Errno::NOTEMPTY) if removed => {}
            Err(Errno::NOENT) => return Ok(()),
            done => return done.map_err(fail),
        }
    }
}
