//! mkdir: with its parents; one that is there already is no error.

use api::{
    Code, Error, Result,
    file::{FileInfo, MkdirRequest},
};
use rustix::{
    fs::{Mode, OFlags, mkdirat},
    io::Errno,
};

use super::{Place, describe_fd, failed, make_directories, open, split};
use crate::{
    inside::{Depth, Inside},
    worker::Worker,
};

pub async fn mkdir(inside: &Inside, request: MkdirRequest) -> Result<FileInfo> {
    Worker::call(inside, Depth::Files, request.user.as_deref(), |job| {
        let path = job.absolute(&request.path);
        make(&path, request.mode)?;
        let fd = open(path.as_str(), OFlags::PATH, 0).map_err(|e| failed(&path, e))?;
        describe_fd(&path, &fd)
    })
    .await
}

fn make(path: &str, mode: Option<u32>) -> Result<()> {
    let Some((parent, _)) = split(path.as_bytes()) else { return Ok(()) };
    make_directories(&String::from_utf8_lossy(parent), 0o755)?;
    let place = Place::of(path)?;
    match mkdirat(&place.directory, place.name(), Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let there = open(path, OFlags::PATH | OFlags::DIRECTORY, 0);
            return there.map(drop).map_err(|_| {
                Error::new(Code::AlreadyExists, format!("`{path}`: is there already and is not a directory"))
            });
        }
        Err(e) => return Err(failed(path, e)),
    }
    // Exact bits, past the umask.
    let Some(mode) = mode else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let made = super::open_at(&place.directory, place.name(), flags, 0).map_err(|e| failed(path, e))?;
    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode & 0o7777)).map_err(|e| failed(path, e))
}
