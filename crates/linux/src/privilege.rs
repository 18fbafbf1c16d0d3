//! Acting as somebody else for one step, by this thread alone, and back.
//!
//! Raw system calls on purpose: the C library's setters change every thread of the process.

use std::io;

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const KEEP: u32 = u32::MAX;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_effective_uid(uid: u32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) })
}

fn set_effective_gid(gid: u32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, KEEP, gid, KEEP) })
}

/// Runs `step` with the effective ids of `owner`, so that what it makes (a user namespace, say) is owned by it.
pub fn as_owner<T>(owner: u32, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    set_effective_gid(owner)?;
    let result = set_effective_uid(owner).and_then(|()| step());
    set_effective_uid(0)?;
    set_effective_gid(0)?;
    result
}

/// Runs `step` with the file-system ids of `uid` and `gid`, but all capabilities: what overlayfs must be mounted
/// with, since it keeps its mounter's credentials.
pub fn with_fs_ids<T>(uid: u32, gid: u32, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: integers only; these two calls report nothing.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
    // Leaving fsuid 0 dropped the file capabilities from the effective set.
    let result = raise_effective().and_then(|()| step());
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, 0);
        libc::syscall(libc::SYS_setfsgid, 0);
    }
    raise_effective()?;
    result
}

/// The effective capabilities become all the permitted ones.
pub fn raise_effective() -> io::Result<()> {
    let header = CapHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: header and data have the kernel's layout for version 3 (two data records).
    check(unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) })?;
    data.iter_mut().for_each(|d| d.effective = d.permitted);
    // SAFETY: as above; the kernel only reads.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })
}

/// Nobody may trace or read this process but its betters: set before it touches a sandbox.
pub fn set_undumpable() -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into())
}

/// Orphans of this process's descendants become its children, to be reaped here.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into())
}
