//! The server's side: finds layerd or starts it, tells it of another store, ends it. Blocks.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use linux::mount;
use rustix::process::{Pid, Signal, kill_process};
use storage::StoreConfig;

use crate::place::{self, Place};

const WITHIN: Duration = Duration::from_secs(10);

/// Whether the mount is the one that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Running,
    /// A new mount: whoever has a mount namespace of before does not see it.
    Started,
}

/// Makes sure that layerd serves `data` with this store. `program` is run as `program --data DATA`.
pub fn running(data: &Path, program: &Path, config: &StoreConfig) -> io::Result<Found> {
    let place = Place::new(data);
    let wanted = serde_json::to_vec(config)?;
    let is_same = fs::read(place.config()).is_ok_and(|was| was == wanted);
    if !is_same {
        place::write_whole(&place.config(), &wanted)?;
    }
    let is_mounted = mount::mount_points()?.contains(&place.mount());
    if let (true, Some(holder)) = (is_mounted, holder(&place)?) {
        if !is_same {
            kill_process(holder, Signal::HUP)?;
        }
        return Ok(Found::Running);
    }
    clear(&place)?;
    start(&place, data, program)?;
    Ok(Found::Started)
}

/// Ends it, if it runs: nothing of it is left but the cache.
pub fn end(data: &Path) -> io::Result<()> {
    let place = Place::new(data);
    if let Some(pid) = holder(&place)? {
        kill_process(pid, Signal::TERM)?;
        let deadline = Instant::now() + WITHIN;
        while holder(&place)?.is_some() {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "layerd did not end"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    clear(&place)
}

/// The holder's process id, while it lives: nobody else has the lock.
fn holder(place: &Place) -> io::Result<Option<Pid>> {
    let file = match File::options().read(true).write(true).open(place.lock()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.try_lock() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(pid_in(&place.lock())),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn pid_in(path: &Path) -> Option<Pid> {
    Pid::from_raw(fs::read_to_string(path).ok()?.trim().parse().ok()?)
}

/// Takes away what is left of one whose holder has died: its worker and its mount.
fn clear(place: &Place) -> io::Result<()> {
    if let Some(pid) = pid_in(&place.worker()) {
        // The number may be another's by now.
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains("dsec-layerd") {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    while mount::mount_points()?.contains(&place.mount()) {
        mount::detach(&place.mount())?;
    }
    for path in [place.worker(), place.stats()] {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn start(place: &Place, data: &Path, program: &Path) -> io::Result<()> {
    let mut child = Command::new(program)
        .arg("--data")
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Its own group, as forge's: sandboxes outlive the server's terminal.
        .process_group(0)
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
    let deadline = Instant::now() + WITHIN;
    loop {
        // Written by a worker that is about to serve; the mount came before it.
        if place.worker().exists() {
            // Reaped when it ends, so that it leaves no zombie of ours.
            std::thread::Builder::new().name("layerd-wait".into()).spawn(move || child.wait())?;
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("layerd ended at start: {status}; its log says why")));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            clear(place)?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "layerd did not answer"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
