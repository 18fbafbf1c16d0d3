//! A husk: fresh namespaces owned by a uid of their own, cgroups, a first process and an aether, both waiting.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use linux::{
    clone::{self, Args, Child},
    mount::{self, Opt},
    privilege, scm,
};
use rustix::{fs::Mode, mount::MountAttrFlags};

use super::{Forge, inside};
use crate::container::{
    cgroup::Cgroups,
    process,
    protocol::{self, Process},
    slot,
};

/// Everything here takes well under a millisecond; a machine in trouble gets this long.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

const NAMESPACE_FLAGS: i32 = libc_flags::NEWUSER
    | libc_flags::NEWNS
    | libc_flags::NEWPID
    | libc_flags::NEWNET
    | libc_flags::NEWIPC
    | libc_flags::NEWUTS;

/// The kernel's clone flags (linux/sched.h).
mod libc_flags {
    pub(super) const NEWNS: i32 = 0x0002_0000;
    pub(super) const NEWUTS: i32 = 0x0400_0000;
    pub(super) const NEWIPC: i32 = 0x0800_0000;
    pub(super) const NEWUSER: i32 = 0x1000_0000;
    pub(super) const NEWPID: i32 = 0x2000_0000;
    pub(super) const NEWNET: i32 = 0x4000_0000;
}

/// Device nodes of every sandbox: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// A sandbox without a root, limits or name.
pub(super) struct Husk {
    pub(super) slot: u32,
    pub(super) cgroups: Cgroups,
    pub(super) init: Child,
    pub(super) init_control: OwnedFd,
    pub(super) aether: Child,
    pub(super) aether_control: OwnedFd,
    /// In the order of `api::husk::NAMESPACES`.
    pub(super) namespaces: Vec<OwnedFd>,
}

impl Husk {
    pub(super) fn userns(&self) -> BorrowedFd<'_> {
        self.namespaces[0].as_fd()
    }

    pub(super) fn netns(&self) -> BorrowedFd<'_> {
        self.namespaces[3].as_fd()
    }

    pub(super) fn record(&self) -> io::Result<protocol::Husk> {
        let process = |pid| Ok::<_, io::Error>(Process { pid, start_ticks: process::start_ticks(pid)? });
        Ok(protocol::Husk {
            slot: self.slot,
            init: process(self.init.pid)?,
            aether: process(self.aether.pid)?,
        })
    }

    /// Removes every trace of it. Logs what will not go: the next start of the edge sweeps it.
    pub(super) fn destroy(self) {
        let Husk { slot, cgroups, init, aether, .. } = self;
        let gone = cgroups
            .kill()
            .and_then(|()| process::wait_exit(init.pidfd.as_fd(), STEP_TIMEOUT))
            .and_then(|()| process::wait_exit(aether.pidfd.as_fd(), STEP_TIMEOUT))
            .and_then(|()| cgroups.remove(STEP_TIMEOUT))
            .and_then(|()| slot::release(slot));
        if let Err(error) = gone {
            tracing::warn!(slot, %error, "husk not wholly removed");
        }
    }
}

/// Steps that are done, undone in reverse when a later one fails.
struct Undo {
    slot: u32,
    cgroups: Option<Cgroups>,
    children: Vec<OwnedFd>,
    armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Some(cgroups) = &self.cgroups {
            let _ = cgroups.kill();
            for child in &self.children {
                let _ = rustix::process::pidfd_send_signal(child, rustix::process::Signal::KILL);
                let _ = process::wait_exit(child.as_fd(), STEP_TIMEOUT);
            }
            let _ = cgroups.remove(STEP_TIMEOUT);
        }
        let _ = slot::release(self.slot);
    }
}

impl Forge {
    /// Makes a husk. On an error nothing of it is left.
    pub(super) fn make_husk(&mut self) -> io::Result<Husk> {
        let slot = slot::claim(self.next_slot, &self.config.data)?;
        self.next_slot = (slot + 1) % slot::SLOTS_MAX;
        let mut undo = Undo { slot, cgroups: None, children: Vec::new(), armed: true };
        let cgroups = self.layout.of(slot);
        undo.cgroups = Some(cgroups.clone());
        cgroups.make(&self.layout)?;

        let dev = make_dev()?;
        let (boxed, v1_tasks) = (cgroups.open_boxed()?, cgroups.open_v1_tasks()?);
        let (init_control, theirs) = scm::pair()?;
        let (init_program, filter) = (self.init.as_fd(), &self.filter);
        let init = privilege::as_owner(slot::owner(slot), || {
            // The owner may not make a process in the box, host root may; the euid alone decides who owns the namespace.
            privilege::raise_effective()?;
            let args = Args { flags: NAMESPACE_FLAGS as u64, cgroup: Some(boxed.as_fd()), ..Args::default() };
            clone::spawn(&args, || inside::run(theirs.as_fd(), dev.as_fd(), init_program, filter, &v1_tasks))
        })?;
        undo.children.push(init.pidfd.try_clone()?);
        drop((theirs, v1_tasks));
        map_ids(init.pid, slot)?;
        let userns = fs::File::open(format!("/proc/{}/ns/user", init.pid))?;
        mount::idmap(dev.as_fd(), userns.as_fd())?;

        let (aether_control, theirs) = scm::pair()?;
        let aether = self.agents.bear(slot::owner(slot), cgroups.open_agent()?.as_fd(), theirs.as_fd())?;
        undo.children.push(aether.pidfd.try_clone()?);
        drop(theirs);

        inside::say_go(init_control.as_fd())?;
        inside::hear_staged(init_control.as_fd(), STEP_TIMEOUT)?;
        let namespaces = api::husk::NAMESPACES
            .iter()
            .map(|name| Ok(fs::File::open(format!("/proc/{}/ns/{name}", init.pid))?.into()))
            .collect::<io::Result<Vec<OwnedFd>>>()?;
        undo.armed = false;
        Ok(Husk { slot, cgroups, init, init_control, aether, aether_control, namespaces })
    }
}

/// The ids of a user namespace: all 65,536, at the slot's own range of the host.
fn map_ids(pid: u32, slot: u32) -> io::Result<()> {
    let map = format!("0 {} {}", slot::users_first(slot), slot::IDS);
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)
}

/// /dev of a sandbox: made here, since only host root may make nodes.
fn make_dev() -> io::Result<OwnedFd> {
    let opts = [Opt::Text("size", "64k"), Opt::Text("mode", "755")];
    let dev = mount::detached("tmpfs", &opts, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    let umask = rustix::process::umask(Mode::empty());
    let nodes = DEVICES.iter().try_for_each(|&(name, major, minor)| {
        let device = rustix::fs::makedev(major, minor);
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(&dev, name, kind, Mode::from_raw_mode(0o666), device)
    });
    rustix::process::umask(umask);
    nodes?;
    for (target, name) in LINKS {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    Ok(dev)
}
