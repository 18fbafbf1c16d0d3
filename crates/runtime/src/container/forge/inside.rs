//! What the first process of a sandbox does in its namespaces, from the fork to the exec of init.
//!
//! Two halves. **Staging** happens in the pool: all that needs no root file system is mounted under
//! [`lean::STAGE`](super::lean::STAGE). **Entering** happens at activation: the root arrives as a descriptor, the
//! staged mounts move onto it, and it becomes `/`.
//!
//! Invariant: nothing inside runs before this is done, and no path of the image is walked through a symlink: mount
//! targets are opened with RESOLVE_NO_SYMLINKS and mounted by descriptor (the class of CVE-2025-31133 and
//! CVE-2025-52565).

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    time::Duration,
};

use linux::{
    confine::Filter,
    cred,
    mount::{self, Opt},
};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    mount::MountAttrFlags,
};
use serde::{Deserialize, Serialize};

use super::lean::STAGE;
use crate::container::wire;

/// Files of /proc that tell or change more than a sandbox's own: they read as empty.
const MASKED_FILES: [&str; 10] = [
    "kcore",
    "keys",
    "key-users",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "timer_list",
    "sched_debug",
    "kmsg",
    "kallsyms",
];
/// Directories of /proc that are hidden.
const MASKED_DIRS: [&str; 3] = ["acpi", "scsi", "asound"];
/// Parts of /proc that are read-only.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// Parts of /sys that are hidden.
const SYS_MASKED: [&str; 5] = ["firmware", "kernel", "fs", "module", "power"];

const RO: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

fn safe() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

/// forge's word to the husk that its ids are mapped; and the husk's, that it is staged.
#[derive(Serialize, Deserialize)]
enum Word {
    Go,
    Staged,
    Failed {
        why: String,
        /// By the image, not by us.
        refused: bool,
    },
}

/// What the husk needs besides the root, which is descriptor 0.
#[derive(Serialize, Deserialize)]
pub(super) struct Enter {
    pub(super) hostname: String,
    pub(super) shm_bytes_max: u64,
    pub(super) etc: Vec<(String, String)>,
}

pub(super) fn say_go(control: BorrowedFd) -> io::Result<()> {
    wire::send(control, &Word::Go, &[])
}

/// Waits until the husk is staged.
pub(super) fn hear_staged(control: BorrowedFd, timeout: Duration) -> io::Result<()> {
    match wire::receive(control, timeout)?.0 {
        Word::Staged => Ok(()),
        Word::Failed { why, refused } => Err(told_error(why, refused)),
        Word::Go => Err(io::Error::other("the husk echoes")),
    }
}

/// Waits until init runs: its end of the channel closes at the exec.
pub(super) fn hear_entered(control: BorrowedFd, timeout: Duration) -> io::Result<()> {
    match wire::receive::<Word>(control, timeout) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Ok((Word::Failed { why, refused }, _)) => Err(told_error(why, refused)),
        Ok(_) => Err(io::Error::other("the husk spoke out of turn")),
        Err(e) => Err(e),
    }
}

/// The husk's whole life. Returns only on a failure, which it has told.
pub(super) fn run(
    control: BorrowedFd,
    dev: BorrowedFd,
    init: BorrowedFd,
    filter: &Filter,
    v1_tasks: &[fs::File],
) -> i32 {
    let told = |what: &str, error: io::Error| {
        let refused = error.kind() == io::ErrorKind::InvalidInput;
        let _ = wire::send(control, &Word::Failed { why: format!("{what}: {error}"), refused }, &[]);
        1
    };
    // Before there is anything to count; opened by host root, whose right it is.
    if let Err(error) = v1_tasks.iter().try_for_each(|tasks| tasks.write_at(b"0", 0).map(drop)) {
        return told("limits", error);
    }
    // Else a husk would hold the others' channels, and forge's death would not end it.
    if let Err(error) = linux::descriptors::close_except(&[control, dev, init]) {
        return told("descriptors", error);
    }
    if let Err(error) = stage(control, dev) {
        return told("staging", error);
    }
    if wire::send(control, &Word::Staged, &[]).is_err() {
        return 1;
    }
    // A pooled husk may wait for hours; forge's death closes the channel and ends it.
    let entered = wire::receive::<Enter>(control, Duration::from_secs(u32::MAX.into()));
    let (enter, fds) = match entered {
        Ok(message) => message,
        Err(_) => return 0,
    };
    match enter_root(&enter, fds).and_then(|()| Err(become_init(init, filter))) {
        Ok(()) => 0,
        Err(error) => told("entering", error),
    }
}

fn stage(control: BorrowedFd, dev: BorrowedFd) -> io::Result<()> {
    let (word, _) = wire::receive::<Word>(control, super::husk::STEP_TIMEOUT)?;
    if !matches!(word, Word::Go) {
        return Err(io::Error::other("expected go"));
    }
    cred::become_user(0, 0, &[])?;
    mount::unshare_cgroups()?;
    mount::make_all_private()?;
    linux::netif::loopback_up()?;
    let at = |part: &str| Path::new(STAGE).join(part);
    mount::attach(dev, &at("dev"))?;
    let pts = [
        Opt::Flag("newinstance"),
        Opt::Text("ptmxmode", "0666"),
        Opt::Text("mode", "0620"),
        Opt::Text("gid", "5"),
    ];
    let no_exec = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::attach(mount::detached("devpts", &pts, no_exec)?.as_fd(), &at("dev/pts"))?;
    mount::attach(mount::detached("mqueue", &[], safe())?.as_fd(), &at("dev/mqueue"))?;
    stage_proc(&at("proc"), &at("dev/null"))?;
    mount::attach(mount::detached("sysfs", &[], safe() | RO)?.as_fd(), &at("sys"))?;
    SYS_MASKED.iter().try_for_each(|part| mask_dir(&at("sys").join(part)))
}

fn stage_proc(proc: &Path, null: &Path) -> io::Result<()> {
    mount::attach(mount::detached("proc", &[], safe())?.as_fd(), proc)?;
    for part in READ_ONLY.map(|p| proc.join(p)).iter().filter(|p| p.exists()) {
        let copy = mount::clone_tree(part)?;
        mount::set_read_only(copy.as_fd())?;
        mount::attach(copy.as_fd(), part)?;
    }
    for part in MASKED_FILES.map(|p| proc.join(p)).iter().filter(|p| p.exists()) {
        mount::attach(mount::clone_tree(null)?.as_fd(), part)?;
    }
    MASKED_DIRS.iter().try_for_each(|part| mask_dir(&proc.join(part)))
}

/// An empty read-only directory over `path`, where there is one.
fn mask_dir(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    let empty = mount::detached("tmpfs", &[Opt::Text("size", "0"), Opt::Text("mode", "755")], safe() | RO)?;
    mount::attach(empty.as_fd(), path)
}

fn enter_root(enter: &Enter, mut fds: Vec<OwnedFd>) -> io::Result<()> {
    let root = fds.pop().ok_or_else(|| io::Error::other("no root came"))?;
    let place = Path::new(STAGE).join("root");
    mount::attach(root.as_fd(), &place)?;
    rustix::process::chdir(&place)?;
    let here = rustix::fs::openat(
        rustix::fs::CWD,
        ".",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for part in ["proc", "sys", "dev"] {
        let target = directory(here.as_fd(), part)?;
        mount::relocate(&Path::new(STAGE).join(part), target.as_fd())?;
    }
    let size = enter.shm_bytes_max.to_string();
    let shm = [Opt::Text("size", &size), Opt::Text("mode", "1777")];
    let nodev = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount::attach_at(
        mount::detached("tmpfs", &shm, nodev)?.as_fd(),
        directory(here.as_fd(), "dev/shm")?.as_fd(),
    )?;
    write_etc(here.as_fd(), &enter.etc)?;
    rustix::system::sethostname(enter.hostname.as_bytes())?;
    mount::pivot_to_cwd()
}

/// The directory `part` of the root, made where it is missing. A symlink in its place is an error.
fn directory(root: BorrowedFd, part: &str) -> io::Result<OwnedFd> {
    let open = || {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(root, part, how, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)
    };
    match open() {
        Err(rustix::io::Errno::NOENT) => {
            rustix::fs::mkdirat(root, part, Mode::from_raw_mode(0o755))?;
            Ok(open()?)
        }
        Ok(fd) => Ok(fd),
        Err(e) => Err(of_image(part, e)),
    }
}

/// What is at `/<part>` of the image is nothing that a sandbox can be built on.
fn of_image(part: &str, error: rustix::io::Errno) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("/{part} of the image: {error}"))
}

fn told_error(why: String, refused: bool) -> io::Error {
    io::Error::new(if refused { io::ErrorKind::InvalidInput } else { io::ErrorKind::Other }, why)
}

/// Replaces files of /etc in the writable layer. An image whose /etc is a symlink keeps what it has.
fn write_etc(root: BorrowedFd, files: &[(String, String)]) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let Ok(etc) = directory(root, "etc") else { return Ok(()) };
    for (name, content) in files {
        match rustix::fs::unlinkat(&etc, name.as_str(), rustix::fs::AtFlags::empty()) {
            Err(e) if e != rustix::io::Errno::NOENT => return Err(of_image(&format!("etc/{name}"), e)),
            _ => {}
        }
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&etc, name.as_str(), how, Mode::from_raw_mode(0o644))?;
        io::Write::write_all(&mut fs::File::from(file), content.as_bytes())?;
    }
    Ok(())
}

/// Gives up what is left of power and becomes init. Returns only on an error.
fn become_init(init: BorrowedFd, filter: &Filter) -> io::Error {
    let prepare = || -> io::Result<()> {
        let null = fs::File::options().read(true).write(true).open("/dev/null")?;
        linux::descriptors::only_null(null.as_fd())?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        filter.install()?;
        // The exec as uid 0 keeps no more than the bounding set: nothing.
        cred::bound_capabilities(0)
    };
    match prepare() {
        Ok(()) => linux::init::become_init(init),
        Err(error) => error,
    }
}
