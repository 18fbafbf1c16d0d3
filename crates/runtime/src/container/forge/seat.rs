//! How overlayfs is given its layers: as detached mounts where the kernel takes such (Linux 6.15), else by the paths of
//! seats in forge's own namespace that they take until the overlay is made. A kernel that wants that does not clone a
//! detached mount either, so there a shared layer has a seat for as long as it is mounted.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use linux::mount::{self, Context, Opt};
use rustix::{
    fs::{Mode, OFlags, openat},
    mount::MountAttrFlags,
};

/// Where the seats are; empty but while an overlay is made.
const SEATS: &str = "/seats";
/// Where shared layers sit, by number.
const SHARED: &str = "/layers";

/// What this kernel's overlayfs can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seating {
    Detached,
    Attached,
}

impl Seating {
    /// Tries it out: an overlay of two empty file systems, mounted nowhere.
    pub(super) fn probe() -> Self {
        let try_it = || {
            let empty = || mount::detached("tmpfs", &[Opt::Text("size", "4k")], MountAttrFlags::empty());
            let (one, two) = (empty()?, empty()?);
            let context = Context::open("overlay")?;
            context.set(&mount::fd_opt("lowerdir+", &one))?;
            context.set(&mount::fd_opt("lowerdir+", &two))?;
            context.create()
        };
        match try_it() {
            Ok(()) => Self::Detached,
            Err(error) => {
                tracing::info!(%error, "this kernel's overlayfs wants its layers attached");
                Self::Attached
            }
        }
    }
}

/// A layer's mount, for clones of it to be made.
pub(super) struct Shared {
    mount: OwnedFd,
    seat: Option<PathBuf>,
}

impl Shared {
    /// `number` is no other layer's.
    pub(super) fn new(seating: Seating, mount: OwnedFd, number: u64) -> io::Result<Self> {
        if seating == Seating::Detached {
            return Ok(Self { mount, seat: None });
        }
        let seat = Path::new(SHARED).join(number.to_string());
        fs::create_dir_all(&seat)?;
        mount::attach(mount.as_fd(), &seat)?;
        Ok(Self { mount, seat: Some(seat) })
    }

    pub(super) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(seat) = &self.seat else { return };
        if let Err(error) = mount::detach(seat).and_then(|()| fs::remove_dir(seat)) {
            tracing::warn!(%error, seat = %seat.display(), "a layer stays mounted");
        }
    }
}

/// The layers of one overlay, held until it is made: a detached mount dissolves with its last descriptor, and an
/// attached one is taken away when this is dropped.
pub(super) struct Seats {
    seating: Seating,
    held: Vec<OwnedFd>,
    attached: Vec<PathBuf>,
}

impl Seats {
    pub(super) fn new(seating: Seating) -> Self {
        Self { seating, held: Vec::new(), attached: Vec::new() }
    }

    /// One more layer below the last. `tree` is a detached mount.
    pub(super) fn lower(&mut self, context: &Context, tree: OwnedFd) -> io::Result<()> {
        match self.seating {
            Seating::Detached => context.set(&mount::fd_opt("lowerdir+", &tree))?,
            Seating::Attached => context.set(&Opt::Text("lowerdir+", &self.attach(&tree)?))?,
        }
        self.held.push(tree);
        Ok(())
    }

    /// The writable part: directories `up` and `wk` of the detached mount `base`.
    pub(super) fn upper(&mut self, context: &Context, base: OwnedFd) -> io::Result<()> {
        let parts = [("upperdir", "up"), ("workdir", "wk")];
        match self.seating {
            Seating::Detached => {
                for (key, name) in parts {
                    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    let dir = openat(&base, name, how, Mode::empty())?;
                    context.set(&mount::fd_opt(key, &dir))?;
                }
            }
            Seating::Attached => {
                let seat = self.attach(&base)?;
                for (key, name) in parts {
                    context.set(&Opt::Text(key, &format!("{seat}/{name}")))?;
                }
            }
        }
        self.held.push(base);
        Ok(())
    }

    fn attach(&mut self, tree: &OwnedFd) -> io::Result<String> {
        let seat = format!("{SEATS}/{}", self.attached.len());
        fs::create_dir_all(&seat)?;
        mount::attach(tree.as_fd(), Path::new(&seat))?;
        self.attached.push(PathBuf::from(&seat));
        Ok(seat)
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        for seat in &self.attached {
            if let Err(error) = mount::detach(seat) {
                tracing::warn!(%error, seat = %seat.display(), "a layer's seat stays taken");
            }
        }
    }
}
