//! The new mount API, typed: a file system context, a detached mount, its attributes and its place.

use std::{
    ffi::{CString, OsString},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

/// A file system that is being configured.
pub struct Context(OwnedFd);

/// An option of a file system.
pub enum Opt<'a> {
    Flag(&'a str),
    Text(&'a str, &'a str),
    Fd(&'a str, BorrowedFd<'a>),
}

impl Context {
    /// `fsopen`.
    pub fn open(kind: &str) -> io::Result<Self> {
        Ok(Self(fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?))
    }

    pub fn set(&self, opt: &Opt) -> io::Result<()> {
        let done = match opt {
            Opt::Flag(key) => fsconfig_set_flag(&self.0, *key),
            Opt::Text(key, value) => fsconfig_set_string(&self.0, *key, *value),
            Opt::Fd(key, fd) => fsconfig_set_fd(&self.0, *key, fd),
        };
        done.map_err(|e| self.explain(e))
    }

    /// Makes the superblock. The mounter's credentials stick to an overlay, so this is apart from the rest.
    pub fn create(&self) -> io::Result<()> {
        fsconfig_create(&self.0).map_err(|e| self.explain(e))
    }

    /// The mount, attached nowhere yet.
    pub fn mount(&self, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
        fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|e| self.explain(e))
    }

    /// The error with what the kernel wrote to the context's log.
    fn explain(&self, errno: rustix::io::Errno) -> io::Error {
        let mut log = Vec::new();
        let mut line = [0u8; 512];
        while let Ok(n @ 1..) = rustix::io::read(&self.0, &mut line) {
            log.extend_from_slice(&line[..n]);
            if log.len() > 4096 {
                break;
            }
        }
        let log = String::from_utf8_lossy(&log);
        match log.trim() {
            "" => errno.into(),
            text => io::Error::new(
                io::Error::from(errno).kind(),
                format!("{errno}: {}", text.replace('\n', "; ")),
            ),
        }
    }
}

/// Opens, configures and mounts in one go.
pub fn detached(kind: &str, opts: &[Opt], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = Context::open(kind)?;
    opts.iter().try_for_each(|opt| context.set(opt))?;
    context.create()?;
    context.mount(attributes)
}

/// A private copy of the mount at `path`, attached nowhere.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    Ok(open_tree(rustix::fs::CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?)
}

/// A private copy of the mount at `path` with all that is mounted below it.
pub fn clone_tree_recursive(path: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(rustix::fs::CWD, path, flags)?)
}

/// Gives this (single-threaded) process a mount namespace of its own.
pub fn unshare_mounts() -> io::Result<()> {
    unshare(libc::CLONE_NEWNS)
}

/// Gives this (single-threaded) process a cgroup namespace rooted at its cgroups.
pub fn unshare_cgroups() -> io::Result<()> {
    unshare(libc::CLONE_NEWCGROUP)
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only; the flags used here share no memory or descriptors in a surprising way.
    if unsafe { libc::unshare(flags) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A private copy of the mount that `fd` is on, rooted at `fd`, attached nowhere.
pub fn clone_tree_at(fd: BorrowedFd) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(fd, "", flags)?)
}

/// Puts a detached mount on `path`.
pub fn attach(mount: BorrowedFd, path: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", rustix::fs::CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Puts a detached mount on the directory or file that `target` stands for: no path is walked, so no link followed.
pub fn attach_at(mount: BorrowedFd, target: BorrowedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// Moves the mount at `from`, with all below it, onto what `target` stands for.
pub fn relocate(from: &Path, target: BorrowedFd) -> io::Result<()> {
    Ok(move_mount(rustix::fs::CWD, from, target, "", MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)?)
}

/// Takes the mount at `path` away, now for names, later for those that still use it.
pub fn detach(path: &Path) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::DETACH)?)
}

/// Maps the ids of a detached mount through a user namespace.
pub fn idmap(mount: BorrowedFd, userns: BorrowedFd) -> io::Result<()> {
    set_attributes(mount, libc::MOUNT_ATTR_IDMAP, Some(userns), false)
}

/// Makes a mount read-only.
pub fn set_read_only(mount: BorrowedFd) -> io::Result<()> {
    set_attributes(mount, libc::MOUNT_ATTR_RDONLY, None, false)
}

/// Makes every mount of this namespace private: nothing propagates in or out.
pub fn make_all_private() -> io::Result<()> {
    let flags = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// The layout of `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn set_attributes(
    mount: BorrowedFd,
    set: u64,
    userns: Option<BorrowedFd>,
    recursive: bool,
) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: userns.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let empty = CString::default();
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: all pointers are to live values of the sizes named; the kernel only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn step(what: &str, errno: rustix::io::Errno) -> io::Error {
    io::Error::new(io::Error::from(errno).kind(), format!("{what}: {errno}"))
}

/// pivot_root to the current directory, and away with what was there.
pub fn pivot_to_cwd() -> io::Result<()> {
    rustix::process::pivot_root(".", ".").map_err(|e| step("pivot_root", e))?;
    unmount(".", UnmountFlags::DETACH).map_err(|e| step("umount old root", e))?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// The mount points that `/proc/self/mountinfo` tells of.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let points = text.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    Ok(points.map(|point| PathBuf::from(OsString::from_vec(unescaped(point)))).collect())
}

/// Spaces, tabs, newlines and backslashes stand there as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match value {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// Keeps the borrow checker honest about descriptors in option lists.
pub fn fd_opt<'a>(key: &'a str, fd: &'a impl AsFd) -> Opt<'a> {
    Opt::Fd(key, fd.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescaped(br"/a\040b\134c\012"), b"/a b\\c\n");
        assert_eq!(unescaped(br"/plain\0"), br"/plain\0");
        assert!(mount_points().unwrap().contains(&PathBuf::from("/proc")));
    }
}
