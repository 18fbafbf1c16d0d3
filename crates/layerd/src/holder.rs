//! The holder: opens `/dev/fuse`, mounts it, and sees to it that a worker serves it.
//!
//! ```text
//! start -> mounted --worker ends--> pause -> a worker again
//!             |--SIGHUP--> the worker is ended: the next one reads the configuration anew
//!             \--SIGTERM--> unmounted, the worker ended
//! ```

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process::Stdio,
    time::Duration,
};

use linux::mount::{self, Opt};
use rustix::{
    fs::{Mode, OFlags},
    mount::MountAttrFlags,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::place::Place;

/// After a worker that ended at once; doubled each time.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A worker that has lived so long did not fail at its start.
const SETTLED: Duration = Duration::from_secs(10);

/// Serves `data` until SIGTERM. `worker` makes the command of a worker; true: it is the connection's first.
pub fn run(data: &Path, worker: impl Fn(bool) -> std::process::Command) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(hold(&Place::new(data), worker))
}

async fn hold(place: &Place, worker: impl Fn(bool) -> std::process::Command) -> io::Result<()> {
    let mut lock = File::options().create(true).truncate(false).write(true).open(place.lock())?;
    lock.try_lock().map_err(|_| io::Error::other("another layerd has this data directory"))?;
    lock.set_len(0)?;
    lock.write_all(std::process::id().to_string().as_bytes())?;
    let (mut end, mut again) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let fuse = mounted(place)?;
    let mut pause = PAUSE;
    let mut is_first = true;
    loop {
        let started = tokio::time::Instant::now();
        let mut child = start(&fuse, worker(is_first))?;
        is_first = false;
        tokio::select! {
            ended = child.wait() => tracing::error!(status = ?ended, "the worker ended"),
            _ = again.recv() => {
                child.kill().await?;
                pause = PAUSE;
            }
            _ = end.recv() => {
                mount::detach(&place.mount())?;
                return child.kill().await;
            }
        }
        if started.elapsed() > SETTLED {
            pause = PAUSE;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = end.recv() => return mount::detach(&place.mount()),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn start(fuse: &OwnedFd, command: std::process::Command) -> io::Result<Child> {
    Command::from(command).stdin(Stdio::from(fuse.try_clone()?)).spawn()
}

/// The connection, with its file system where it belongs.
fn mounted(place: &Place) -> io::Result<OwnedFd> {
    let at = place.mount();
    std::fs::create_dir_all(&at)?;
    let how = OFlags::RDWR | OFlags::CLOEXEC;
    let fuse = rustix::fs::open("/dev/fuse", how, Mode::empty())?;
    let fd = fuse.as_raw_fd().to_string();
    let opts = [
        Opt::Text("source", "dsec-layerd"),
        Opt::Text("fd", &fd),
        Opt::Text("rootmode", "40000"),
        Opt::Text("user_id", "0"),
        Opt::Text("group_id", "0"),
        // EROFS reads for whoever reads of a sandbox.
        Opt::Flag("allow_other"),
    ];
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let detached = mount::detached("fuse", &opts, attributes)?;
    mount::attach(detached.as_fd(), &at)?;
    Ok(fuse)
}
