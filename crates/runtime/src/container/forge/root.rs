//! The root of a sandbox: shared EROFS layers below, its own upper above, composed by overlayfs, ids mapped.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use linux::mount::{self, Context, Opt};
use rustix::mount::MountAttrFlags;

use super::seat::{Seating, Seats, Shared};
use crate::{LayerFiles, container::protocol::Upper};

/// Layers that are mounted: once for all sandboxes, so that they share one page cache.
pub(super) struct Layers {
    mounts: HashMap<String, Shared>,
    seating: Seating,
    /// Layers mounted so far: names the next one's seat.
    count: u64,
}

impl Layers {
    pub(super) fn new() -> Self {
        Self { mounts: HashMap::new(), seating: Seating::probe(), count: 0 }
    }

    /// The mount of a layer, made at first use.
    fn get(&mut self, layer: &LayerFiles) -> io::Result<BorrowedFd<'_>> {
        if !self.mounts.contains_key(&layer.digest) {
            self.count += 1;
            let mounted = Shared::new(self.seating, mount_layer(layer)?, self.count)?;
            self.mounts.insert(layer.digest.clone(), mounted);
        }
        Ok(self.mounts[&layer.digest].mount())
    }

    /// Drops a layer's mount. Sandboxes that live on it keep theirs.
    pub(super) fn forget(&mut self, digest: &str) {
        self.mounts.remove(digest);
    }
}

fn text(path: &Path) -> io::Result<&str> {
    std::str::from_utf8(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a layer's path is not UTF-8"))
}

fn mount_layer(layer: &LayerFiles) -> io::Result<OwnedFd> {
    let context = Context::open("erofs")?;
    context.set(&Opt::Text("source", text(&layer.meta)?))?;
    context.set(&Opt::Flag("ro"))?;
    if let Some(blob) = &layer.blob {
        context.set(&Opt::Text("device", text(blob)?))?;
    }
    // Without it each page of data is cached twice: in EROFS and in the file behind it.
    context.set(&Opt::Flag("directio"))?;
    context.create()?;
    context.mount(MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// An ids-mapped private copy of a mount.
fn mapped(mount: BorrowedFd, userns: BorrowedFd) -> io::Result<OwnedFd> {
    let copy = mount::clone_tree_at(mount)?;
    mount::idmap(copy.as_fd(), userns)?;
    Ok(copy)
}

/// The directory that holds `up` and `wk`.
fn upper_base(upper: &Upper) -> io::Result<OwnedFd> {
    match upper {
        Upper::Disk(path) => {
            let plain = mount::clone_tree(path)?;
            Ok(plain)
        }
        Upper::Memory { bytes_max } => {
            let size = bytes_max.to_string();
            let opts = [Opt::Text("size", &size), Opt::Text("mode", "700")];
            let tmpfs = mount::detached("tmpfs", &opts, MountAttrFlags::empty())?;
            let base = format!("/proc/self/fd/{}", tmpfs.as_raw_fd());
            fs::create_dir(format!("{base}/up"))?;
            fs::create_dir(format!("{base}/wk"))?;
            Ok(tmpfs)
        }
    }
}

/// The composed root, attached nowhere. `root_uid` is the host uid that is 0 inside `userns`.
pub(super) fn compose(
    layers: &mut Layers,
    files: &[LayerFiles],
    upper: &Upper,
    userns: BorrowedFd,
    root_uid: u32,
) -> io::Result<OwnedFd> {
    let context = Context::open("overlay")?;
    let mut seats = Seats::new(layers.seating);
    // overlayfs takes the topmost first.
    for file in files.iter().rev() {
        seats.lower(&context, mapped(layers.get(file)?, userns)?)?;
    }
    let base = upper_base(upper)?;
    mount::idmap(base.as_fd(), userns)?;
    seats.upper(&context, base)?;
    // The upper never outlives a crash of the machine, so there is nothing to sync at unmount.
    context.set(&Opt::Flag("volatile"))?;
    context.set(&Opt::Text("source", "dsec"))?;
    linux::privilege::with_fs_ids(root_uid, root_uid, || context.create())?;
    context.mount(MountAttrFlags::MOUNT_ATTR_NODEV)
}
