//! btrfs: subvolumes and their quota, by ioctl on a directory's descriptor.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

const NAME_MAX: usize = 4087;

/// `struct btrfs_ioctl_vol_args`
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; NAME_MAX + 1],
}

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `struct btrfs_ioctl_quota_ctl_args`
#[repr(C)]
struct QuotaCtlArgs {
    cmd: u64,
    status: u64,
}

/// `struct btrfs_qgroup_limit`
#[repr(C)]
#[derive(Default)]
struct QgroupLimit {
    flags: u64,
    max_rfer: u64,
    max_excl: u64,
    rsv_rfer: u64,
    rsv_excl: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`
#[repr(C)]
struct QgroupLimitArgs {
    qgroupid: u64,
    lim: QgroupLimit,
}

/// `struct btrfs_ioctl_qgroup_create_args`
#[repr(C)]
struct QgroupCreateArgs {
    create: u64,
    qgroupid: u64,
}

/// `struct btrfs_ioctl_ino_lookup_args`
#[repr(C)]
struct InoLookupArgs {
    treeid: u64,
    objectid: u64,
    name: [u8; 4080],
}

const MAGIC: u64 = 0x94;
const fn iow(nr: u64, size: usize) -> u64 {
    (1 << 30) | ((size as u64) << 16) | (MAGIC << 8) | nr
}
const fn ior(nr: u64, size: usize) -> u64 {
    (2 << 30) | ((size as u64) << 16) | (MAGIC << 8) | nr
}
const fn iowr(nr: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (MAGIC << 8) | nr
}
const SUBVOL_CREATE: u64 = iow(14, size_of::<VolArgs>());
const SNAP_DESTROY: u64 = iow(15, size_of::<VolArgs>());
const SNAP_CREATE_V2: u64 = iow(23, size_of::<VolArgsV2>());
const SUBVOL_RDONLY: u64 = 2;
const INO_LOOKUP: u64 = iowr(18, size_of::<InoLookupArgs>());
const QUOTA_CTL: u64 = iowr(40, size_of::<QuotaCtlArgs>());
const QGROUP_CREATE: u64 = iow(42, size_of::<QgroupCreateArgs>());
const QGROUP_LIMIT: u64 = ior(43, size_of::<QgroupLimitArgs>());
const QUOTA_CTL_ENABLE: u64 = 1;
const QUOTA_CTL_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_RFER: u64 = 1;
/// The root directory of every subvolume.
const FIRST_FREE_OBJECTID: u64 = 256;

fn ioctl<T>(fd: BorrowedFd, request: u64, arg: &mut T) -> io::Result<()> {
    // SAFETY: `request` encodes the size of T, and every caller here pairs the two; the kernel reads and writes within it.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(arg)) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() > 255 || name.contains(['/', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a subvolume name"));
    }
    Ok(())
}

fn vol_args(name: &str) -> io::Result<Box<VolArgs>> {
    check_name(name)?;
    let mut args = Box::new(VolArgs { fd: 0, name: [0; NAME_MAX + 1] });
    args.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(args)
}

/// Makes the subvolume `name` in the directory.
pub fn create_subvolume(dir: BorrowedFd, name: &str) -> io::Result<()> {
    ioctl(dir, SUBVOL_CREATE, &mut *vol_args(name)?)
}

/// What a snapshot can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// Makes `name` in the directory a copy of the subvolume `source` as it is now, sharing all of its blocks.
pub fn snapshot(source: BorrowedFd, dir: BorrowedFd, name: &str, access: Access) -> io::Result<()> {
    check_name(name)?;
    let flags = if access == Access::ReadOnly { SUBVOL_RDONLY } else { 0 };
    let fd = i64::from(source.as_raw_fd());
    let mut args = Box::new(VolArgsV2 { fd, transid: 0, flags, unused: [0; 4], name: [0; 4040] });
    args.name[..name.len()].copy_from_slice(name.as_bytes());
    ioctl(dir, SNAP_CREATE_V2, &mut *args)
}

/// Removes the subvolume `name`: the name at once, its blocks soon after.
pub fn destroy_subvolume(dir: BorrowedFd, name: &str) -> io::Result<()> {
    ioctl(dir, SNAP_DESTROY, &mut *vol_args(name)?)
}

/// The id of the subvolume that `dir` is in.
pub fn subvolume_id(dir: BorrowedFd) -> io::Result<u64> {
    let mut args = Box::new(InoLookupArgs { treeid: 0, objectid: FIRST_FREE_OBJECTID, name: [0; 4080] });
    ioctl(dir, INO_LOOKUP, &mut *args)?;
    Ok(args.treeid)
}

/// Turns quota on: simple accounting (no back-reference walks) where the kernel has it (6.7), else the old one.
pub fn enable_quota(dir: BorrowedFd) -> io::Result<()> {
    let simple = ioctl(dir, QUOTA_CTL, &mut QuotaCtlArgs { cmd: QUOTA_CTL_ENABLE_SIMPLE, status: 0 });
    simple.or_else(|_| ioctl(dir, QUOTA_CTL, &mut QuotaCtlArgs { cmd: QUOTA_CTL_ENABLE, status: 0 }))
}

/// Bounds the bytes that a subvolume may refer to.
pub fn limit_subvolume(dir: BorrowedFd, id: u64, bytes: u64) -> io::Result<()> {
    let lim = QgroupLimit { flags: LIMIT_MAX_RFER, max_rfer: bytes, ..QgroupLimit::default() };
    ioctl(dir, QGROUP_LIMIT, &mut QgroupLimitArgs { qgroupid: id, lim })
}

/// Forgets the quota group of a subvolume that is gone.
pub fn destroy_qgroup(dir: BorrowedFd, id: u64) -> io::Result<()> {
    ioctl(dir, QGROUP_CREATE, &mut QgroupCreateArgs { create: 0, qgroupid: id })
}

/// Whether a directory is on btrfs.
pub fn is_btrfs(dir: BorrowedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(dir)?.f_type as u64 == 0x9123_683e)
}
