//! A forge in miniature: user namespace with an owner, the other namespaces, cgroups, a root of tmpfs and the host's
//! /usr, init as pid 1, and the agent beside it.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::symlink, net::UnixListener},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use aether::inside::Inside;
use api::husk::{Activation, NAMESPACES};
use linux::{
    clone::{self, Args, Child},
    confine::capability,
    privilege, scm, sealed,
};
use rustix::{
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
        mount_change, unmount,
    },
    process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, pivot_root, waitid},
};

const UNIFIED: &str = "/sys/fs/cgroup/unified";
const V1: [&str; 3] = ["memory", "cpu", "pids"];
/// user, mount, pid, net, ipc, uts, cgroup
const NEW: u64 = 0x1000_0000 | 0x2_0000 | 0x2000_0000 | 0x4000_0000 | 0x800_0000 | 0x400_0000 | 0x200_0000;
pub const MEMORY_BYTES: u64 = 256 << 20;
pub const PIDS: u64 = 200;

pub struct Husk {
    owner: u32,
    name: String,
    pub init: Child,
}

fn v1(controller: &str, name: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup").join(controller).join(name)
}

fn v2(name: &str) -> PathBuf {
    Path::new(UNIFIED).join(name)
}

fn die_with_parent() {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("die with parent");
}

/// The exit code of a child, or None by a signal.
pub fn wait(pidfd: &OwnedFd) -> Option<i32> {
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("wait").expect("status");
    status.exit_status()
}

impl Husk {
    pub fn make() -> Self {
        let pid = std::process::id();
        let name = format!("dsec-test-{pid}");
        let first = 1_000_000_000 + pid * 65_537;
        let owner = first + 65_536;
        make_cgroups(&name, owner);
        let root = root_path(&name);
        fs::create_dir_all(&root).expect("root");
        let program = linux::init::program().expect("init");
        let (ours, theirs) = scm::pair().expect("pair");
        let init = privilege::as_owner(owner, || {
            clone::spawn(&Args { flags: NEW, ..Args::default() }, || {
                scm::recv(&theirs, &mut [0]).expect("go");
                linux::cred::become_user(0, 0, &[]).expect("root inside");
                // A change of ids takes it back, so it comes after.
                die_with_parent();
                make_root(&root);
                scm::send(&theirs, b"r", &[]).expect("ready");
                // Nothing of the test's stays open in it.
                let kept = linux::fork::keep_only(&[program.as_fd()]).expect("close");
                panic!("{}", linux::init::become_init(kept[0].as_fd()));
            })
        })
        .expect("init");
        drop(theirs);
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", init.pid), format!("0 {first} 65536")).expect("map");
        }
        fs::write(v2(&name).join("box/cgroup.procs"), init.pid.to_string()).expect("box");
        for controller in V1 {
            fs::write(v1(controller, &name).join("cgroup.procs"), init.pid.to_string()).expect("v1");
        }
        scm::send(&ours, b"g", &[]).expect("go");
        assert_eq!(scm::recv(&ours, &mut [0]).expect("ready").0, 1, "init died early");
        Self { owner, name, init }
    }

    fn namespaces(&self) -> Vec<OwnedFd> {
        let open =
            |n: &&str| fs::File::open(format!("/proc/{}/ns/{n}", self.init.pid)).expect("namespace").into();
        NAMESPACES.iter().map(open).collect()
    }

    fn activation(&self) -> Activation {
        let text = |p: PathBuf| p.to_string_lossy().into_owned();
        Activation {
            root_in_memory: false,
            sandbox: api::SandboxId::new(&"t".parse().expect("edge")),
            env: [("FROM_IMAGE".to_owned(), "yes".to_owned())].into(),
            user: None,
            workdir: None,
            cgroup_box: text(v2(&self.name).join("box")),
            cgroup_v1_tasks: V1.iter().map(|c| text(v1(c, &self.name).join("tasks"))).collect(),
            oom_counter: Some(text(v1("memory", &self.name).join("memory.oom_control"))),
            capabilities: capability::DEFAULT,
        }
    }

    fn spawn_as_agent(&self, run: impl FnOnce()) -> Child {
        let agent = fs::File::open(v2(&self.name).join("agent")).expect("agent");
        clone::spawn(&Args { cgroup: Some(agent.as_fd()), ..Args::default() }, || {
            linux::cred::become_user(self.owner, self.owner, &[]).expect("owner");
            die_with_parent();
            privilege::set_undumpable().expect("undumpable");
            run();
            0
        })
        .expect("agent")
    }

    /// The service in a process of its own, with the agent's ids.
    pub fn agent(&self, run: impl FnOnce(Inside)) -> Child {
        let (activation, namespaces) = (self.activation(), self.namespaces());
        self.spawn_as_agent(|| run(Inside::new(activation, namespaces).expect("inside")))
    }

    /// The real program.
    pub fn activate(&self, aether: &str, socket: &str) -> Child {
        let program = sealed::program(Path::new(aether)).expect("aether");
        let listener = UnixListener::bind(socket).expect("socket");
        let (ours, theirs) = scm::pair().expect("pair");
        let agent = self.spawn_as_agent(|| {
            // The program is not in the kept list's place 3, so it goes second.
            let kept = linux::fork::keep_only(&[theirs.as_fd(), program.as_fd()]).expect("close");
            rustix::io::fcntl_setfd(&kept[0], rustix::io::FdFlags::empty()).expect("keep 3");
            panic!("{}", sealed::exec(kept[1].as_fd(), &["aether", "agent"]));
        });
        drop(theirs);
        let namespaces = self.namespaces();
        let fds: Vec<_> = [listener.as_fd()].into_iter().chain(namespaces.iter().map(AsFd::as_fd)).collect();
        let json = serde_json::to_vec(&self.activation()).expect("json");
        scm::send(&ours, &json, &fds).expect("activate");
        assert_eq!(scm::recv(&ours, &mut [0]).expect("serving").0, 1, "the agent died early");
        agent
    }

    /// True if nothing is left.
    pub fn destroy(self) -> bool {
        let _ = pidfd_send_signal(&self.init.pidfd, Signal::KILL);
        let _ = fs::write(v2(&self.name).join("cgroup.kill"), "1");
        wait(&self.init.pidfd);
        // Children of a killed agent became ours or the machine's.
        let mut left = Vec::new();
        for _ in 0..200 {
            while matches!(waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_))) {}
            left = self.remove_cgroups();
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        left.iter().for_each(|p| eprintln!("left behind: {}", p.display()));
        let root = root_path(&self.name);
        fs::remove_dir(&root).is_ok() && left.is_empty()
    }

    fn remove_cgroups(&self) -> Vec<PathBuf> {
        let base = v2(&self.name);
        let inner = fs::read_dir(base.join("box")).into_iter().flatten().flatten().map(|e| e.path());
        let mut all: Vec<PathBuf> = inner.filter(|p| p.is_dir()).collect();
        all.extend([base.join("box"), base.join("agent"), base]);
        all.extend(V1.iter().map(|c| v1(c, &self.name)));
        all.retain(|p| p.exists() && fs::remove_dir(p).is_err());
        all
    }
}

fn root_path(name: &str) -> PathBuf {
    Path::new("/var/tmp").join(name)
}

fn make_cgroups(name: &str, owner: u32) {
    let own = |path: PathBuf| std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
    let base = v2(name);
    for directory in [base.clone(), base.join("agent"), base.join("box")] {
        fs::create_dir(&directory).expect("cgroup");
        own(directory.clone());
        own(directory.join("cgroup.procs"));
    }
    for controller in V1 {
        let directory = v1(controller, name);
        fs::create_dir(&directory).expect("cgroup");
        own(directory.join("cgroup.procs"));
        own(directory.join("tasks"));
    }
    fs::write(v1("memory", name).join("memory.limit_in_bytes"), MEMORY_BYTES.to_string()).expect("memory");
    fs::write(v1("pids", name).join("pids.max"), PIDS.to_string()).expect("pids");
}

fn make_root(root: &Path) {
    let tmpfs = |at: &Path, options: &std::ffi::CStr| {
        fs::create_dir_all(at).expect("mkdir");
        mount("tmpfs", at, "tmpfs", MountFlags::NOSUID, Some(options)).expect("tmpfs");
    };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
    tmpfs(root, c"mode=755,size=300m");
    let bind = |from: &str| {
        let to = root.join(&from[1..]);
        fs::create_dir_all(&to).expect("mkdir");
        mount_bind_recursive(from, &to).expect("bind");
    };
    bind("/usr");
    for (link, to) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        symlink(to, root.join(link)).expect("link");
    }
    let text = |path: &str, text: &str| fs::write(root.join(path), text).expect(path);
    for directory in ["etc", "proc", "dev/pts", "dev/shm", "tmp", "root", "home/ann", "old", "small"] {
        fs::create_dir_all(root.join(directory)).expect("mkdir");
    }
    text("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n");
    text("etc/group", "root:x:0:\nann:x:1000:\nextra:x:1234:ann\n");
    text("etc/shadow", "root:the sandbox's own:::::::\n");
    let mode = |path: &str, mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(root.join(path), permissions).expect("chmod");
    };
    mode("etc/shadow", 0o600);
    mode("tmp", 0o1777);
    mode("root", 0o700);
    std::os::unix::fs::chown(root.join("home/ann"), Some(1000), Some(1000)).expect("chown");
    mount(
        "proc",
        root.join("proc"),
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .expect("proc");
    mount(
        "devpts",
        root.join("dev/pts"),
        "devpts",
        MountFlags::NOSUID,
        Some(c"newinstance,ptmxmode=0666,mode=0620"),
    )
    .expect("devpts");
    for device in ["null", "zero", "urandom", "full", "tty"] {
        let to = root.join("dev").join(device);
        fs::write(&to, "").expect("device");
        mount_bind(format!("/dev/{device}"), &to).expect("bind");
    }
    for (link, to) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(to, root.join("dev").join(link)).expect("link");
    }
    tmpfs(&root.join("small"), c"size=8m");
    pivot_root(root, root.join("old")).expect("pivot");
    rustix::process::chdir("/").expect("chdir");
    unmount("/old", UnmountFlags::DETACH).expect("unmount");
    linux::netif::loopback_up().expect("lo up");
}
