//! `<data>/run`: sockets, the link to forge and the ledger, in memory.
//!
//! All of it must survive the process and none of it the machine, and it changes with each create and stop: on a disk's
//! file system every one of them would make, rename and remove files in its journal (0.5 ms of the processor).

use std::{fs, io, os::fd::AsFd, path::Path};

use linux::mount::{self, Opt};
use rustix::mount::MountAttrFlags;

/// A sandbox takes 12 KiB at most: this is for 20,000 of them.
const BYTES_MAX: &str = "256m";

/// Makes it and mounts it, where it is not. Call it before anything is put there.
pub fn ensure(data: &Path) -> io::Result<()> {
    let at = data.join("run");
    fs::create_dir_all(&at)?;
    if is_mounted(data)? {
        return Ok(());
    }
    let opts = [Opt::Text("size", BYTES_MAX), Opt::Text("mode", "700")];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount::attach(mount::detached("tmpfs", &opts, attributes)?.as_fd(), &at)
}

/// Unmounts it: what was in it is gone.
pub(super) fn unmount(data: &Path) -> io::Result<()> {
    let at = data.join("run");
    if is_mounted(data)? { mount::detach(&at) } else { Ok(()) }
}

/// Whether a backend has been started on `data` and not ended.
pub fn is_mounted(data: &Path) -> io::Result<bool> {
    let at = data.join("run");
    Ok(mount::mount_points()?.contains(&at))
}
