//! forge's mount namespace: as few mounts as it can do with, since each new sandbox copies them.
//!
//! proc and sysfs are mounted fresh and nothing hides a part of them, because the kernel lets a user namespace mount
//! its own only where its mount namespace already shows a whole one.

use std::{fs, io, os::fd::AsFd, path::Path};

use linux::mount::{self, Opt};
use rustix::{
    fs::{CWD, FileType, Mode},
    mount::MountAttrFlags,
};

use crate::container::cgroup::Layout;

/// Where the cgroup hierarchies are.
pub(super) const CGROUPS: &str = "/cg";
/// Where a husk stages the mounts of its sandbox; empty in forge itself.
pub(super) const STAGE: &str = "/s";

const DIRS: [&str; 7] = ["proc", "sys", "dev", "s/proc", "s/sys", "s/dev", "s/root"];
/// What forge and aether themselves open: name, minor of major 1.
const DEVICES: [(&str, u32); 3] = [("dev/null", 3), ("dev/random", 8), ("dev/urandom", 9)];

/// Moves this process into its own lean mount namespace.
pub(super) fn enter(layout: &Layout, data: &Path) -> io::Result<()> {
    linux::mount::unshare_mounts()?;
    mount::make_all_private()?;
    let root = mount::detached(
        "tmpfs",
        &[Opt::Text("size", "1m"), Opt::Text("mode", "755")],
        MountAttrFlags::empty(),
    )?;
    // The new root has to stand somewhere to become the root; /proc is there on every host.
    let proc = mount::detached("proc", &[], MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    let sys = mount::detached("sysfs", &[], MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    let mut binds = vec![(layout.v2.clone(), Path::new(CGROUPS).join("unified"))];
    binds.extend(layout.v1.iter().map(|(c, at)| (at.clone(), Path::new(CGROUPS).join(c))));
    fs::create_dir_all("/run/dsec/slots")?;
    binds.push((Path::new("/run/dsec").into(), Path::new("/run/dsec").into()));
    binds.push((data.into(), data.into()));
    let trees = binds
        .iter()
        .map(|(from, to)| Ok((mount::clone_tree_recursive(from)?, to.strip_prefix("/").unwrap_or(to))))
        .collect::<io::Result<Vec<_>>>()?;

    mount::attach(root.as_fd(), Path::new("/proc"))?;
    rustix::process::chdir("/proc")?;
    DIRS.iter().try_for_each(fs::create_dir_all)?;
    for (name, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, name, FileType::CharacterDevice, mode, rustix::fs::makedev(1, minor))?;
        rustix::fs::chmodat(CWD, name, mode, rustix::fs::AtFlags::empty())?;
    }
    mount::attach(proc.as_fd(), Path::new("proc"))?;
    mount::attach(sys.as_fd(), Path::new("sys"))?;
    for (tree, to) in &trees {
        fs::create_dir_all(to)?;
        mount::attach(tree.as_fd(), to)?;
    }
    mount::pivot_to_cwd()
}
