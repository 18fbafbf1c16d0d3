//! Detached mounts: EROFS from files, overlayfs over them.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

pub struct Mounted(OwnedFd);

impl Mounted {
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/.", self.0.as_raw_fd()))
    }
}

pub fn mount(meta: &Path, blob: Option<&Path>) -> Mounted {
    let fs = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_set_string(fs.as_fd(), "source", meta).unwrap();
    if let Some(blob) = blob {
        fsconfig_set_string(fs.as_fd(), "device", blob).unwrap();
    }
    fsconfig_set_flag(fs.as_fd(), "directio").unwrap();
    fsconfig_set_flag(fs.as_fd(), "ro").unwrap();
    created(fs)
}

/// Lowest first.
pub fn overlay(layers: &[Mounted]) -> Mounted {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    for layer in layers.iter().rev() {
        fsconfig_set_fd(fs.as_fd(), "lowerdir+", layer.0.as_fd()).unwrap();
    }
    fsconfig_set_flag(fs.as_fd(), "ro").unwrap();
    created(fs)
}

fn created(fs: OwnedFd) -> Mounted {
    if let Err(e) = fsconfig_create(fs.as_fd()) {
        let mut said = [0; 4096];
        let n = rustix::io::read(&fs, &mut said).unwrap_or(0);
        panic!("mount: {e}: {}", String::from_utf8_lossy(&said[..n]));
    }
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY;
    Mounted(fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).unwrap())
}
