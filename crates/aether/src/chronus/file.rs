//! Files of the sandbox, each verb in the file of its name.
//!
//! Every path is followed by a forked child that is in the sandbox's mount namespace as the asked user, so a link can
//! lead nowhere but inside, whatever is swapped under it; the kernel's magic links (`/proc/self/fd/3`) are refused.

pub mod list;
pub mod mkdir;
pub mod read;
pub mod remove;
pub mod rename;
pub mod stat;
pub mod watch;
pub mod write;

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use api::{
    Code, Error, Result,
    file::{FileInfo, FileKind},
    payload::Payload,
};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat},
    io::Errno,
};

/// Links followed by hand before it is a loop, as in the kernel.
const LINKS_MAX: usize = 40;

/// What an errno means to a caller who asked for `path`.
pub fn failed(path: &str, error: Errno) -> Error {
    let (code, why) = match error {
        Errno::NOENT => (Code::NotFound, "does not exist"),
        Errno::NOTDIR => (Code::NotFound, "a part of it is not a directory"),
        Errno::ISDIR => (Code::IsDirectory, "is a directory"),
        Errno::ACCESS | Errno::PERM => (Code::PermissionDenied, "is not open to this user of the sandbox"),
        Errno::ROFS => (Code::PermissionDenied, "is on a read-only file system"),
        Errno::DQUOT => (Code::DiskFull, "the sandbox's disk is full (disk_bytes_max)"),
        Errno::NOSPC => (Code::DiskFull, "no space is left on the file system there"),
        Errno::FBIG => (Code::DiskFull, "the file would be larger than the file system takes"),
        Errno::EXIST => (Code::AlreadyExists, "is there already"),
        Errno::NOTEMPTY => (Code::IsDirectory, "is a directory that is not empty: ask for `recursive`"),
        Errno::LOOP => {
            (Code::InvalidArgument, "has too many symbolic links, or one of the kernel's magic links")
        }
        Errno::NAMETOOLONG => (Code::InvalidArgument, "a name of it is over 255 bytes"),
        Errno::TXTBSY => (Code::Conflict, "is a program that runs"),
        Errno::BUSY => (Code::Conflict, "is in use as a mount point"),
        Errno::XDEV => (Code::InvalidArgument, "leads out of the directory"),
        Errno::NXIO => (Code::InvalidArgument, "is a socket or an empty pipe, not a file"),
        _ => {
            eprintln!("aether: file operation: {error}");
            return Error::new(Code::Internal, format!("`{path}`: {error}"));
        }
    };
    Error::new(code, format!("`{path}`: {why}"))
}

/// The same for an error of std.
pub fn failed_io(path: &str, error: &io::Error) -> Error {
    failed(path, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Opens `path` as a caller's path must be: no magic links, close-on-exec, never a controlling terminal.
pub fn open(path: impl rustix::path::Arg, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    open_at(CWD, path, flags, mode)
}

/// As [`open`], from `directory`.
pub fn open_at(
    directory: impl AsFd,
    path: impl rustix::path::Arg,
    flags: OFlags,
    mode: u32,
) -> rustix::io::Result<OwnedFd> {
    let flags =
        flags | OFlags::CLOEXEC | if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
    openat2(directory, path, flags, mode, ResolveFlags::NO_MAGICLINKS)
}

/// A name in an opened directory.
pub struct Place {
    pub directory: OwnedFd,
    pub name: Vec<u8>,
}

/// Parent and last component. None where the path ends in no name (`/`, `..`).
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|b| *b != b'/')? + 1;
    let path = &path[..end];
    let start = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    let name = &path[start..];
    if matches!(name, b"." | b"..") {
        return None;
    }
    let parent = if start == 0 { &b"."[..] } else { &path[..start] };
    Some((parent, name))
}

impl Place {
    /// Opens the directory that holds `path`'s last name, which need not exist and is not followed.
    pub fn of(path: &str) -> Result<Self> {
        let (parent, name) = split(path.as_bytes()).ok_or_else(|| {
            Error::new(Code::IsDirectory, format!("`{path}`: names a directory, not a name in one"))
        })?;
        let directory = open(parent, OFlags::PATH | OFlags::DIRECTORY, 0).map_err(|e| failed(path, e))?;
        Ok(Self { directory, name: name.to_vec() })
    }

    /// As [`Place::of`], but where the name is a link, the place that it leads to.
    pub fn followed(path: &str) -> Result<Self> {
        let mut place = Self::of(path)?;
        for _ in 0..LINKS_MAX {
            let Ok(target) = readlinkat(&place.directory, place.name.as_slice(), Vec::new()) else {
                return Ok(place);
            };
            let (parent, name) = split(target.as_bytes())
                .ok_or_else(|| Error::new(Code::IsDirectory, format!("`{path}`: is a directory")))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let directory = open_at(&place.directory, parent, flags, 0).map_err(|e| failed(path, e))?;
            place = Self { directory, name: name.to_vec() };
        }
        Err(failed(path, Errno::LOOP))
    }

    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    pub fn stat(&self) -> rustix::io::Result<Stat> {
        rustix::fs::statat(&self.directory, self.name.as_slice(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
    }
}

pub fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::File,
    }
}

/// What is told of a file.
pub fn describe(path: &[u8], stat: &Stat, symlink_target: Option<Vec<u8>>) -> FileInfo {
    let name = split(path).map_or(path, |(_, name)| name);
    FileInfo {
        name: Payload::from(name.to_vec()),
        path: Payload::from(path.to_vec()),
        kind: kind(stat),
        size_bytes: stat.st_size.max(0) as u64,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: stat.st_mtime * 1000 + stat.st_mtime_nsec as i64 / 1_000_000,
        symlink_target: symlink_target.map(Payload::from),
    }
}

/// lstat of an opened name (`O_PATH`), with a link's target.
pub fn describe_fd(path: &str, fd: &OwnedFd) -> Result<FileInfo> {
    let stat = fstat(fd).map_err(|e| failed(path, e))?;
    let target = match kind(&stat) {
        FileKind::Symlink => readlinkat(fd, "", Vec::new()).ok().map(|t| t.into_bytes()),
        _ => None,
    };
    Ok(describe(path.as_bytes(), &stat, target))
}

/// Directories down to `path`, made where missing, with the rights of the current user.
pub fn make_directories(path: &str, mode: u32) -> Result<()> {
    match open(path, OFlags::PATH | OFlags::DIRECTORY, 0) {
        Ok(_) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(e) => return Err(failed(path, e)),
    }
    let mut at = if path.starts_with('/') { "/".to_owned() } else { ".".to_owned() };
    for part in path.split('/').filter(|p| !p.is_empty()) {
        at.push('/');
        at.push_str(part);
        if open(at.as_str(), OFlags::PATH | OFlags::DIRECTORY, 0).is_ok() {
            continue;
        }
        match rustix::fs::mkdirat(CWD, at.as_str(), Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(&at, e)),
        }
    }
    open(path, OFlags::PATH | OFlags::DIRECTORY, 0).map(drop).map_err(|e| failed(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_their_last_name() {
        let split = |p: &'static str| {
            split(p.as_bytes()).map(|(a, b)| (str::from_utf8(a).unwrap(), str::from_utf8(b).unwrap()))
        };
        assert_eq!(split("/a/b"), Some(("/a/", "b")));
        assert_eq!(split("/a/b//"), Some(("/a/", "b")));
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("a"), Some((".", "a")));
        for path in ["/", "", "..", "/a/..", "/."] {
            assert_eq!(split(path), None, "{path}");
        }
    }

    #[test]
    fn every_error_names_the_path() {
        for e in [Errno::NOENT, Errno::ACCESS, Errno::DQUOT, Errno::ISDIR, Errno::MFILE] {
            assert!(failed("/x/y", e).message.contains("`/x/y`"));
        }
        assert_eq!(failed("/x", Errno::DQUOT).code, Code::DiskFull);
    }
}
