//! The cgroups of one sandbox, on a v2 host and on a hybrid one (v2 for kill and freeze, v1 for the controllers).
//!
//! ```text
//! v2      dsec/s<slot>/agent          aether: outside the sandbox's limits
//!         dsec/s<slot>/box            init and all that runs inside; limits here where v2 has the controllers
//!         dsec/s<slot>/box/x<n>       one exec
//! v1      <memory|cpu|pids>/dsec/s<slot>    limits on a hybrid host
//! ```
//! `s<slot>` and below belong to the sandbox's owner uid, so that aether, which is not root, can place and kill.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{protocol::Limits, slot};

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Of the memory limit, for the buffers of TCP on top of it.
const TCP_SHARE: u64 = 4;
/// The kernel's default scheduling period.
const PERIOD_US: u64 = 100_000;

const FREEZE: &str = "cgroup.freeze";

/// Where this machine has its cgroup hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub v2: PathBuf,
    /// Controllers that v2 has and we use.
    v2_controllers: Vec<&'static str>,
    /// Controller and mount point, for those that v1 has.
    pub v1: Vec<(&'static str, PathBuf)>,
}

impl Layout {
    /// Reads `/proc/self/mounts`.
    pub fn detect() -> io::Result<Self> {
        let mut layout = Self::parse(&fs::read_to_string("/proc/self/mounts")?)?;
        let has = fs::read_to_string(layout.v2.join("cgroup.controllers"))?;
        layout.v2_controllers =
            CONTROLLERS.into_iter().filter(|c| has.split_whitespace().any(|h| h == *c)).collect();
        Ok(layout)
    }

    fn parse(mounts: &str) -> io::Result<Self> {
        let (mut v2, mut v1) = (None, Vec::new());
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, target, kind, options, ..] = fields[..] else { continue };
            match kind {
                "cgroup2" => v2 = v2.or(Some(PathBuf::from(target))),
                "cgroup" => {
                    let found = CONTROLLERS.iter().find(|c| options.split(',').any(|o| o == **c));
                    if let Some(controller) = found
                        && !v1.iter().any(|(c, _)| c == controller)
                    {
                        v1.push((*controller, PathBuf::from(target)));
                    }
                }
                _ => {}
            }
        }
        let v2 = v2
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "no cgroup v2 hierarchy is mounted"))?;
        Ok(Self { v2, v2_controllers: Vec::new(), v1 })
    }

    /// The same hierarchies, mounted under another root.
    pub fn moved_to(&self, root: &Path) -> Self {
        Self {
            v2: root.join("unified"),
            v2_controllers: self.v2_controllers.clone(),
            v1: self.v1.iter().map(|(c, _)| (*c, root.join(c))).collect(),
        }
    }

    /// The cgroups of a slot.
    pub fn of(&self, slot: u32) -> Cgroups {
        let name = format!("dsec/s{slot}");
        Cgroups {
            slot,
            v2: self.v2.join(&name),
            v1: self.v1.iter().map(|(c, at)| (*c, at.join(&name))).collect(),
        }
    }

    /// Removes the common parent `dsec`, where no sandbox of any edge is left in it.
    pub fn remove_parent(&self) {
        std::iter::once(&self.v2).chain(self.v1.iter().map(|(_, at)| at)).for_each(|at| {
            let _ = fs::remove_dir(at.join("dsec"));
        });
    }

    /// Makes the common parent, and hands the controllers that v2 has down to where the sandboxes are.
    fn make_parent(&self) -> io::Result<()> {
        fs::create_dir_all(self.v2.join("dsec"))?;
        self.hand_down(&self.v2)?;
        self.hand_down(&self.v2.join("dsec"))
    }

    fn hand_down(&self, at: &Path) -> io::Result<()> {
        if self.v2_controllers.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = self.v2_controllers.iter().map(|c| format!("+{c}")).collect();
        fs::write(at.join("cgroup.subtree_control"), all.join(" "))
    }
}

/// The cgroups of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    slot: u32,
    v2: PathBuf,
    v1: Vec<(&'static str, PathBuf)>,
}

impl Cgroups {
    /// Makes them. On an error nothing is left.
    pub fn make(&self, layout: &Layout) -> io::Result<()> {
        let made = self.try_make(layout);
        if made.is_err() {
            let _ = self.remove(Duration::from_secs(1));
        }
        made
    }

    fn try_make(&self, layout: &Layout) -> io::Result<()> {
        let owner = Some(slot::owner(self.slot));
        match make_dir(&self.v2) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                layout.make_parent()?;
                make_dir(&self.v2)?;
            }
            made => made?,
        }
        // What a fork from aether's cgroup into one below the box asks for: to write to the common ancestor.
        chown(self.v2.join("cgroup.procs"), owner, owner)?;
        make_dir(&self.v2.join("agent"))?;
        make_dir(&self.boxed())?;
        // aether makes the cgroups of execs, and owns what it makes.
        chown(self.boxed(), owner, owner)?;
        layout.hand_down(&self.v2)?;
        for (_, dir) in &self.v1 {
            fs::create_dir_all(dir)?;
            // aether joins for its children: it may write here, and the kernel lets it move only its own processes.
            chown(dir.join("tasks"), owner, owner)?;
        }
        Ok(())
    }

    /// Where everything inside lives.
    pub fn boxed(&self) -> PathBuf {
        self.v2.join("box")
    }

    /// `tasks` of the v1 hierarchies. A lone thread that moves itself there needs no lock on all of the machine's forks,
    /// as `cgroup.procs` does.
    pub fn v1_tasks(&self) -> Vec<PathBuf> {
        self.v1.iter().map(|(_, dir)| dir.join("tasks")).collect()
    }

    /// The file that counts kills by the memory limit.
    pub fn oom_counter(&self) -> Option<PathBuf> {
        match self.v1_dir("memory") {
            Some(dir) => Some(dir.join("memory.oom_control")),
            None => Some(self.boxed().join("memory.events")).filter(|p| p.exists()),
        }
    }

    fn v1_dir(&self, controller: &str) -> Option<&PathBuf> {
        self.v1.iter().find(|(c, _)| *c == controller).map(|(_, dir)| dir)
    }

    /// The box, for a process to be born in. Never move one there by its pid: the kernel would hold up every fork of the
    /// machine for a grace period, some milliseconds.
    pub fn open_boxed(&self) -> io::Result<OwnedFd> {
        open_dir(&self.boxed())
    }

    /// Where aether is born, beside the box.
    pub fn open_agent(&self) -> io::Result<OwnedFd> {
        open_dir(&self.v2.join("agent"))
    }

    /// The v1 limits, for a lone thread to join by writing "0": for the same reason it does so itself.
    pub fn open_v1_tasks(&self) -> io::Result<Vec<fs::File>> {
        self.v1_tasks().into_iter().map(|tasks| fs::File::options().write(true).open(tasks)).collect()
    }

    /// Sets the limits.
    pub fn limit(&self, limits: &Limits) -> io::Result<()> {
        let quota_us = u64::from(limits.cpu_millis_max) * PERIOD_US / 1000;
        match self.v1_dir("memory") {
            Some(dir) => {
                fs::write(dir.join("memory.limit_in_bytes"), limits.memory_bytes_max.to_string())?;
                // Where swap is accounted, memory and swap together get the same bound.
                let both = dir.join("memory.memsw.limit_in_bytes");
                if both.exists() {
                    fs::write(both, limits.memory_bytes_max.to_string())?;
                }
                // Buffers of TCP are counted apart here, and not at all without a bound of their own.
                let tcp = dir.join("memory.kmem.tcp.limit_in_bytes");
                if tcp.exists() {
                    fs::write(tcp, (limits.memory_bytes_max / TCP_SHARE).to_string())?;
                }
            }
            None => {
                fs::write(self.boxed().join("memory.max"), limits.memory_bytes_max.to_string())?;
                let _ = fs::write(self.boxed().join("memory.swap.max"), "0");
            }
        }
        match self.v1_dir("cpu") {
            Some(dir) => {
                fs::write(dir.join("cpu.cfs_quota_us"), quota_us.to_string())?;
                fs::write(
                    dir.join("cpu.shares"),
                    (u64::from(limits.cpu_millis_max) * 1024 / 1000).max(2).to_string(),
                )?;
                if limits.best_effort {
                    fs::write(dir.join("cpu.idle"), "1")?;
                }
            }
            None => {
                fs::write(self.boxed().join("cpu.max"), format!("{quota_us} {PERIOD_US}"))?;
                if limits.best_effort {
                    fs::write(self.boxed().join("cpu.idle"), "1")?;
                }
            }
        }
        let pids = self.v1_dir("pids").cloned().unwrap_or_else(|| self.boxed());
        fs::write(pids.join("pids.max"), limits.pids_max.to_string())
    }

    /// Holds all that runs inside at a point between two system calls, until the answer is dropped. Errors: `TimedOut`,
    /// where a process does not get there within `patience`; all goes on then.
    pub fn freeze(&self, patience: Duration) -> io::Result<Frozen> {
        let frozen = Frozen(self.boxed());
        fs::write(frozen.0.join(FREEZE), "1")?;
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_micros(50);
        // Not by poll: the kernel tells of it up to 10 ms late.
        while !fs::read_to_string(frozen.0.join("cgroup.events"))?.contains("frozen 1") {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a process inside cannot be frozen"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        Ok(frozen)
    }

    /// Whatever an earlier process of ours has frozen goes on. Idempotent.
    pub fn thaw(&self) -> io::Result<()> {
        fs::write(self.boxed().join(FREEZE), "0")
    }

    /// Kills all that runs inside, frozen or not, and the agent beside it.
    pub fn kill(&self) -> io::Result<()> {
        match fs::write(self.v2.join("cgroup.kill"), "1") {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes them once they are empty, within `patience`.
    pub fn remove(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        let execs = fs::read_dir(self.boxed()).into_iter().flatten().flatten();
        let execs = execs.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path());
        let mut dirs: Vec<PathBuf> = execs.collect();
        dirs.extend([self.boxed(), self.v2.join("agent"), self.v2.clone()]);
        dirs.extend(self.v1.iter().map(|(_, dir)| dir.clone()));
        dirs.iter().try_for_each(|dir| remove_dir(dir, deadline))
    }
}

/// See [`Cgroups::freeze`].
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.0.join(FREEZE), "0") {
            tracing::warn!(%error, cgroup = %self.0.display(), "cannot be thawed");
        }
    }
}

/// Makes it where it is not there yet.
fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, how, Mode::empty())?)
}

/// rmdir of a cgroup: busy while a process in it is dying.
fn remove_dir(dir: &Path, deadline: Instant) -> io::Result<()> {
    let mut pause = Duration::from_micros(50);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(e) if e.raw_os_error() == Some(libc_ebusy()) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            Err(e) => return Err(e),
        }
    }
}

fn libc_ebusy() -> i32 {
    rustix::io::Errno::BUSY.raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
        cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
        cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    #[test]
    fn a_hybrid_host_is_read() {
        let layout = Layout::parse(HYBRID).unwrap();
        assert_eq!(layout.v2, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(layout.v1.iter().map(|(c, _)| *c).collect::<Vec<_>>(), ["cpu", "memory", "pids"]);
    }

    #[test]
    fn a_pure_v2_host_is_read() {
        let layout = Layout::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap();
        assert_eq!(layout.v2, Path::new("/sys/fs/cgroup"));
        assert!(layout.v1.is_empty());
        assert!(Layout::parse("proc /proc proc rw 0 0\n").is_err());
    }

    #[test]
    fn limits_land_in_the_kernel_and_removal_leaves_nothing() {
        let layout = Layout::detect().unwrap();
        let slot = slot::claim(31_000, Path::new("/nowhere/cgroup-test")).unwrap();
        let groups = layout.of(slot);
        groups.make(&layout).unwrap();
        let limits =
            Limits { memory_bytes_max: 64 << 20, cpu_millis_max: 500, pids_max: 7, best_effort: true };
        groups.limit(&limits).unwrap();
        let pids = groups.v1_dir("pids").cloned().unwrap_or_else(|| groups.boxed());
        assert_eq!(fs::read_to_string(pids.join("pids.max")).unwrap().trim(), "7");
        groups.remove(Duration::from_secs(5)).unwrap();
        assert!(!groups.v2.exists());
        assert!(groups.v1.iter().all(|(_, dir)| !dir.exists()));
        slot::release(slot).unwrap();
    }
}
