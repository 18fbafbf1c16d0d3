//! The volume: a btrfs where every sandbox's writable part is a subvolume with a quota.
//!
//! Where the data directory is on btrfs already, it is a directory there; else a sparse file, mounted by a loop
//! device that goes away with the mount. A second start finds it mounted and uses it.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
};

use linux::{
    btrfs::{self, Access},
    loopdev, mount,
};
use rustix::mount::MountAttrFlags;

/// The least size of a volume file: btrfs wants about 110 MiB.
const BYTES_MIN: u64 = 1 << 30;
/// Left free on the disk below when the volume is made: where its writes fail, btrfs goes read-only for everybody.
const HEADROOM_BYTES: u64 = 1 << 30;
/// With less free space than this, on the volume or below it, no sandbox comes.
const FREE_BYTES_MIN: u64 = 256 << 20;

pub(crate) struct Volume {
    at: PathBuf,
    /// Ours to unmount.
    mounted: bool,
}

impl Volume {
    pub(crate) fn ensure(data: &Path) -> io::Result<Self> {
        let at = data.join("volume");
        fs::create_dir_all(&at)?;
        let ours_already = mount::mount_points()?.contains(&at);
        let native = btrfs::is_btrfs(File::open(data)?.as_fd())?;
        let volume = Self { mounted: !native, at };
        if !native && !ours_already {
            volume.mount_file(&data.join("volume.btrfs"))?;
        }
        fs::create_dir_all(volume.uppers())?;
        fs::create_dir_all(volume.snapshots())?;
        match btrfs::enable_quota(File::open(&volume.at)?.as_fd()) {
            // Already on.
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                tracing::warn!(error = %e, "btrfs quota not enabled now; a limit will tell");
            }
            _ => {}
        }
        Ok(volume)
    }

    fn mount_file(&self, path: &Path) -> io::Result<()> {
        if !path.exists() {
            make_file(path)?;
        }
        let file = File::options().read(true).write(true).open(path)?;
        let (device, name) = attach_loop(&file)?;
        let name = name.to_string_lossy().into_owned();
        let context = mount::Context::open("btrfs")?;
        // What is removed can be used again after a commit.
        for (key, value) in [("source", name.as_str()), ("discard", "async"), ("commit", "5")] {
            context.set(&mount::Opt::Text(key, value))?;
        }
        context.create()?;
        let mounted = context.mount(MountAttrFlags::MOUNT_ATTR_NOATIME)?;
        mount::attach(mounted.as_fd(), &self.at)?;
        drop(device);
        Ok(())
    }

    /// Snapshots of a sandbox's writable part: `<sandbox>/<name>`.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.at.join("snapshots")
    }

    /// The writable part of `name` as it is now, read-only. Gives its path.
    pub(crate) fn snapshot(&self, sandbox: &str, name: &str) -> io::Result<PathBuf> {
        self.check_room()?;
        let dir = self.snapshots().join(sandbox);
        fs::create_dir_all(&dir)?;
        let upper = File::open(self.uppers().join(sandbox))?;
        btrfs::snapshot(upper.as_fd(), File::open(&dir)?.as_fd(), name, Access::ReadOnly)?;
        Ok(dir.join(name))
    }

    /// Idempotent.
    pub(crate) fn remove_snapshot(&self, sandbox: &str, name: &str) -> io::Result<()> {
        match File::open(self.snapshots().join(sandbox)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(dir) => gone(btrfs::destroy_subvolume(dir.as_fd(), name)),
            Err(e) => Err(e),
        }
    }

    /// All of a sandbox that `doomed` picks by name. Idempotent.
    pub(crate) fn remove_snapshots(&self, sandbox: &str, doomed: impl Fn(&str) -> bool) -> io::Result<()> {
        let dir = self.snapshots().join(sandbox);
        let names = match fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        for name in names {
            let name = name?.file_name().to_string_lossy().into_owned();
            if doomed(&name) {
                self.remove_snapshot(sandbox, &name)?;
            }
        }
        match fs::remove_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            done => gone(done),
        }
    }

    pub(crate) fn uppers(&self) -> PathBuf {
        self.at.join("uppers")
    }

    /// A subvolume with `up` and `wk` in it, empty or as in the snapshot `from`, bounded to `bytes_max`. On an error
    /// nothing is left. Errors: `StorageFull` where the node has no room for another.
    pub(crate) fn make_upper(&self, name: &str, bytes_max: u64, from: Option<&Path>) -> io::Result<()> {
        self.check_room()?;
        let uppers = File::open(self.uppers())?;
        match from {
            None => btrfs::create_subvolume(uppers.as_fd(), name)?,
            Some(from) => {
                btrfs::snapshot(File::open(from)?.as_fd(), uppers.as_fd(), name, Access::ReadWrite)?;
            }
        }
        let fill = || {
            let dir = self.uppers().join(name);
            let subvolume = File::open(&dir)?;
            let id = btrfs::subvolume_id(subvolume.as_fd())?;
            btrfs::limit_subvolume(subvolume.as_fd(), id, bytes_max)?;
            if from.is_some() {
                // overlayfs marks it at a volatile mount and refuses it at the next.
                fs::remove_dir_all(dir.join("wk"))?;
            } else {
                fs::create_dir(dir.join("up"))?;
            }
            fs::create_dir(dir.join("wk"))
        };
        fill().inspect_err(|_| {
            let _ = self.remove_upper(name);
        })
    }

    fn check_room(&self) -> io::Result<()> {
        let below = self.at.parent().unwrap_or(&self.at);
        if free_bytes(&self.at)?.min(free_bytes(below)?) < FREE_BYTES_MIN {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Idempotent.
    pub(crate) fn remove_upper(&self, name: &str) -> io::Result<()> {
        let uppers = File::open(self.uppers())?;
        gone(btrfs::destroy_subvolume(uppers.as_fd(), name))
    }

    /// The loop device goes with it.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        if self.mounted { mount::detach(&self.at) } else { Ok(()) }
    }
}

/// What was gone already is no error.
fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A loop device over `file`. Without a udev the node of a module that is not loaded is missing, so it is loaded.
fn attach_loop(file: &File) -> io::Result<(File, PathBuf)> {
    match loopdev::attach(file.as_fd()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let _ = Command::new("modprobe").arg("loop").output();
            loopdev::attach(file.as_fd())
        }
        done => done,
    }
    .map_err(|e| io::Error::new(e.kind(), format!("a loop device (kernel module loop): {e}")))
}

fn free_bytes(at: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(at)?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// A sparse file as large as what is free on the file system that it is on, so that the node's disk is the bound.
fn make_file(path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let free = free_bytes(parent)?;
    let bytes = free.saturating_sub(HEADROOM_BYTES.min(free / 10)).max(BYTES_MIN);
    let partial = path.with_extension("partial");
    File::create(&partial)?.set_len(bytes)?;
    let made = Command::new("mkfs.btrfs")
        .args(["--quiet", "--nodiscard", "--data", "single", "--metadata", "single", "--label", "dsec"])
        .arg(&partial)
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("mkfs.btrfs (Debian package btrfs-progs): {e}")))?;
    if !made.status.success() {
        let _ = fs::remove_file(&partial);
        return Err(io::Error::other(format!(
            "mkfs.btrfs: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        )));
    }
    fs::rename(partial, path)
}
