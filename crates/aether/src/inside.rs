//! The way in: the sandbox's namespaces, its v1 cgroups and its defaults. Opened once, entered by forked children.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{
    Code, Error, Result,
    husk::{Activation, NAMESPACES},
};
use linux::confine::Filter;
use rustix::{
    fs::OFlags,
    thread::{LinkNameSpaceType as Kind, move_into_link_name_space},
};
use tokio::sync::Semaphore;

use crate::account::Account;

const KINDS: [Kind; NAMESPACES.len()] = [
    Kind::User,
    Kind::Mount,
    Kind::ProcessID,
    Kind::Network,
    Kind::InterProcessCommunication,
    Kind::HostNameAndNISDomainName,
    Kind::ControlGroup,
];

/// Helpers at once: more wait.
const HELPERS_MAX: usize = 64;

/// How far a child goes in. The user namespace always comes first: it gives the right to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// To reach files.
    Files,
    /// To dial a port.
    Network,
    /// To become a process of the sandbox.
    All,
}

/// What aether holds of its sandbox.
pub struct Inside {
    namespaces: Vec<OwnedFd>,
    v1_tasks: Vec<File>,
    /// Those of `v1_tasks` that count memory.
    v1_memory: Vec<File>,
    /// Where v2 counts: the cgroup that helpers are born in.
    helpers_cgroup: Option<OwnedFd>,
    /// Helpers at work: each may be kept busy for as long as a caller likes.
    pub helpers: Arc<Semaphore>,
    oom_counter: Arc<OomCounter>,
    /// Kills of [`Inside::oom_kills`] that the end of a command has been explained by.
    oom_told: AtomicU64,
    /// The writable layer is memory.
    pub root_in_memory: bool,
    pub filter: Filter,
    pub capabilities: u64,
    pub cgroup_box: String,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
}

impl Inside {
    /// `namespaces` in the order of [`NAMESPACES`].
    pub fn new(activation: Activation, namespaces: Vec<OwnedFd>) -> io::Result<Self> {
        if namespaces.len() != NAMESPACES.len() {
            return Err(io::Error::other(format!(
                "{} namespaces, not {}",
                namespaces.len(),
                NAMESPACES.len()
            )));
        }
        let v1_tasks = activation.cgroup_v1_tasks.iter().map(|path| File::options().write(true).open(path));
        let v1_tasks = v1_tasks.collect::<io::Result<_>>()?;
        let v1_memory = activation
            .cgroup_v1_tasks
            .iter()
            .filter(|path| Path::new(path).components().any(|part| part.as_os_str() == "memory"));
        let v1_memory =
            v1_memory.map(|path| File::options().write(true).open(path)).collect::<io::Result<_>>()?;
        let helpers_cgroup = match activation.cgroup_v1_tasks.is_empty() {
            true => Some(make_helpers_cgroup(&activation.cgroup_box)?),
            false => None,
        };
        let oom_counter = activation.oom_counter.as_deref().map(File::open).transpose()?;
        Ok(Self {
            namespaces,
            v1_tasks,
            v1_memory,
            helpers_cgroup,
            helpers: Arc::new(Semaphore::new(HELPERS_MAX)),
            oom_counter: Arc::new(OomCounter(oom_counter)),
            oom_told: AtomicU64::new(0),
            root_in_memory: activation.root_in_memory,
            filter: Filter::new(),
            capabilities: activation.capabilities,
            cgroup_box: activation.cgroup_box,
            env: activation.env,
            user: activation.user,
            workdir: activation.workdir,
        })
    }

    /// Times that the kernel has killed for memory in the sandbox.
    pub fn oom_kills(&self) -> u64 {
        self.oom_counter.read()
    }

    /// The counter, for who outlives a borrow.
    pub fn oom_counter(&self) -> Arc<OomCounter> {
        self.oom_counter.clone()
    }

    /// Whether the kernel has killed for memory since it had `before` times, and no other command's end was it. One kill
    /// explains one end.
    pub fn explain_by_oom(&self, before: u64) -> bool {
        let kills = self.oom_kills();
        let told = self.oom_told.load(Ordering::Relaxed);
        if kills <= before.max(told) {
            return false;
        }
        self.oom_told.store(before.max(told) + 1, Ordering::Relaxed);
        true
    }

    /// In a forked helper: its memory, and what it writes to memory, counts as the sandbox's. Its processor time and its
    /// being a process do not, so that files can be reached in a sandbox that has used up both.
    pub fn join_memory(&self) -> io::Result<()> {
        self.v1_memory.iter().try_for_each(|tasks| tasks.write_at(b"0", 0).map(drop))
    }

    /// Where a helper is born, if [`Inside::join_memory`] does nothing.
    pub fn helpers_cgroup(&self) -> Option<BorrowedFd<'_>> {
        self.helpers_cgroup.as_ref().map(AsFd::as_fd)
    }

    /// In a forked child: counts against the sandbox's v1 limits from here on.
    pub fn join_limits(&self) -> io::Result<()> {
        self.v1_tasks.iter().try_for_each(|tasks| tasks.write_at(b"0", 0).map(drop))
    }

    /// In a forked child: enters, and is root inside with every capability there (and none outside).
    pub fn enter(&self, depth: Depth) -> io::Result<()> {
        for (fd, kind) in self.namespaces.iter().zip(KINDS) {
            let wanted = match depth {
                Depth::All => true,
                Depth::Files => matches!(kind, Kind::User | Kind::Mount),
                Depth::Network => matches!(kind, Kind::User | Kind::Network),
            };
            if wanted {
                move_into_link_name_space(fd.as_fd(), Some(kind))?;
            }
            if kind == Kind::User {
                linux::cred::become_user(0, 0, &[])?;
            }
        }
        Ok(())
    }

    /// In a child that entered: becomes `account`, root with the sandbox's capabilities, others with none.
    pub fn become_account(&self, account: &Account) -> io::Result<()> {
        linux::cred::bound_capabilities(self.capabilities)?;
        linux::cred::become_user(account.uid, account.gid, &account.groups)?;
        linux::cred::limit_capabilities(if account.uid == 0 { self.capabilities } else { 0 })
    }

    /// The asked user, else the sandbox's.
    pub fn user_or_default<'a>(&'a self, asked: Option<&'a str>) -> Option<&'a str> {
        // An empty name must not mean root where the sandbox's own user is another.
        asked.filter(|name| !name.is_empty()).or(self.user.as_deref())
    }

    /// Where relative paths of `account` start.
    pub fn base(&self, account: &Account) -> String {
        self.workdir.clone().unwrap_or_else(|| account.home.clone())
    }
}

/// A file with a line `oom_kill <count>`.
pub struct OomCounter(Option<File>);

impl OomCounter {
    pub fn read(&self) -> u64 {
        let mut text = [0; 512];
        let length = self.0.as_ref().and_then(|f| f.read_at(&mut text, 0).ok()).unwrap_or(0);
        String::from_utf8_lossy(&text[..length])
            .lines()
            .find_map(|l| l.strip_prefix("oom_kill "))
            .and_then(|n| n.trim().parse().ok())
            .unwrap_or(0)
    }
}

fn make_helpers_cgroup(boxed: &str) -> io::Result<OwnedFd> {
    let path = Path::new(boxed).join("files");
    match std::fs::create_dir(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(&path, how, rustix::fs::Mode::empty())?)
}

/// The sandbox cannot be entered any more.
pub fn broken(step: &str, error: &io::Error) -> Error {
    eprintln!("aether: {step}: {error}");
    Error::new(Code::SandboxBroken, format!("the sandbox cannot be entered ({step}): stop it"))
}

/// Maps what a full or dying kernel says when a process cannot be made.
pub fn not_forked(error: &io::Error) -> Error {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::AGAIN) => Error::new(
            Code::QuotaExceeded,
            "the sandbox is at its limit of processes (pids_max): end some, or create it with more",
        ),
        // The pid namespace has lost its first process.
        Some(rustix::io::Errno::NOMEM) => {
            Error::new(Code::SandboxBroken, "the sandbox's first process is gone: stop the sandbox")
        }
        _ => broken("fork", error),
    }
}

/// A result of a step inside, with its name on failure.
pub fn step<T>(name: &str, done: io::Result<T>) -> Result<T> {
    done.map_err(|e| broken(name, &e))
}
