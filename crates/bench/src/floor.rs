//! floor: what the kernel alone takes to make a sandbox of this image, and to destroy it.
//!
//! The least that gives the same isolation, by hand and without an agent, limits, ids or a disk quota: a cgroup, an
//! overlay over the image's layer, clone3 into the cgroup with new namespaces, the root moved in, proc, dev, pivot_root,
//! exec of a static init. Ready is when the exec has happened: our end of a close-on-exec pipe closes. Destroyed is when
//! it is reaped and its cgroup, upper and work directories are gone.
//!
//! It forks, so it must run in a process without threads: the bench starts itself again as `floor ...`.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use linux::{
    clone::{self, Args},
    mount::{self, Opt},
};
use rustix::{
    fs::{CWD, FileType, Mode},
    mount::MountAttrFlags,
    process::{WaitId, WaitIdOptions, waitid},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{node::Node, report::Report};

/// linux/sched.h: mount, cgroup, UTS, IPC and PID namespaces.
const NAMESPACES: u64 = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x2000_0000;
const NETWORK: u64 = 0x4000_0000;
const WARM_UP_RUNS: usize = 10;
const DEVICES: [(&str, u32, u32); 6] = [
    ("dev/null", 1, 3),
    ("dev/zero", 1, 5),
    ("dev/full", 1, 7),
    ("dev/random", 1, 8),
    ("dev/urandom", 1, 9),
    ("dev/tty", 5, 0),
];

/// Measures it on the node's own image and volume, in a process of its own.
pub fn measure(node: &Node, runs: usize, report: &mut Report) -> Result<()> {
    let (meta, blob) = node.layer()?;
    let place = node.data().join("volume/floor");
    fs::create_dir(&place)?;
    for kind in ["pooled", "plain"] {
        let out = Command::new(std::env::current_exe()?)
            .args(["floor", kind, &runs.to_string()])
            .args([&meta, &blob, &place])
            .stderr(std::process::Stdio::inherit())
            .output()?;
        if !out.status.success() {
            bail!("the floor ended with {}", out.status);
        }
        let samples = parse(&String::from_utf8_lossy(&out.stdout))?;
        let (created, destroyed): (Vec<_>, Vec<_>) = samples.into_iter().skip(WARM_UP_RUNS).unzip();
        let name = if kind == "pooled" { "floor.pooled" } else { "floor" };
        report.put_ms(&format!("{name}.create"), &created);
        report.put_ms(&format!("{name}.destroy"), &destroyed);
    }
    fs::remove_dir(&place).context("the floor left something")
}

fn parse(text: &str) -> Result<Vec<(Duration, Duration)>> {
    let number = |t: &str| t.parse::<u64>().map(Duration::from_nanos);
    let line = |l: &str| {
        let (create, destroy) = l.split_once(' ').with_context(|| format!("not two numbers: {l}"))?;
        Ok((number(create)?, number(destroy)?))
    };
    text.lines().map(line).collect()
}

/// `floor <pooled|plain> <runs> <meta> <blob> <place>`: prints nanoseconds of each create and destroy.
pub fn main(args: &[String]) -> Result<()> {
    let [kind, runs, meta, blob, place] = args else { bail!("expected five arguments") };
    clone::ensure_single_threaded()?;
    let runs = runs.parse::<usize>()? + WARM_UP_RUNS;
    let floor = Floor::new(Path::new(meta), Path::new(blob), Path::new(place))?;
    let pool = if kind == "pooled" { network_namespaces(runs)? } else { Vec::new() };
    let done = (0..runs).try_for_each(|run| floor.run(run, pool.get(run)));
    drop(pool);
    floor.remove()?;
    done
}

struct Floor {
    cgroup: PathBuf,
    place: PathBuf,
    root: PathBuf,
    layer: OwnedFd,
    init: OwnedFd,
}

/// Network namespaces made before anybody asks.
fn network_namespaces(count: usize) -> Result<Vec<File>> {
    let home = File::open("/proc/thread-self/ns/net")?;
    let mut pool = Vec::new();
    for _ in 0..count {
        linux::netif::unshare_network()?;
        pool.push(File::open("/proc/thread-self/ns/net")?);
    }
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(pool)
}

fn cgroup_v2() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().find_map(|l| {
        let mut words = l.split(' ');
        let (target, kind) = (words.nth(1)?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target))
    });
    found.context("no cgroup v2 hierarchy is mounted")
}

impl Floor {
    fn new(meta: &Path, blob: &Path, place: &Path) -> Result<Self> {
        mount::unshare_mounts()?;
        mount::make_all_private()?;
        let text = |p: &Path| p.to_str().map(str::to_owned).context("a path is not UTF-8");
        let (meta, blob) = (text(meta)?, text(blob)?);
        let opts =
            [Opt::Text("source", &meta), Opt::Flag("ro"), Opt::Text("device", &blob), Opt::Flag("directio")];
        let layer = mount::detached("erofs", &opts, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        let cgroup = cgroup_v2()?.join(format!("dsec-floor-{}", std::process::id()));
        fs::create_dir(&cgroup)?;
        let root = place.join("root");
        fs::create_dir(&root)?;
        Ok(Self { cgroup, place: place.to_owned(), root, layer, init: linux::init::program()? })
    }

    fn run(&self, run: usize, netns: Option<&File>) -> Result<()> {
        let start = Instant::now();
        let cgroup = self.cgroup.join(run.to_string());
        fs::create_dir(&cgroup)?;
        let cgroup_fd = File::open(&cgroup)?;
        let (upper, work) = (self.place.join(format!("u{run}")), self.place.join(format!("w{run}")));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        let text = |p: &Path| p.to_str().unwrap_or_default().to_owned();
        let opts = [
            mount::fd_opt("lowerdir+", &self.layer),
            Opt::Text("upperdir", &text(&upper)),
            Opt::Text("workdir", &text(&work)),
            Opt::Flag("volatile"),
        ];
        let overlay = mount::detached("overlay", &opts, MountAttrFlags::empty())?;
        let (mut ready, theirs) = io::pipe()?;
        let flags = NAMESPACES | if netns.is_none() { NETWORK } else { 0 };
        let spawn = Args { flags, cgroup: Some(cgroup_fd.as_fd()), ..Args::default() };
        let child = clone::spawn(&spawn, || self.inside(overlay.as_fd(), netns))?;
        drop(theirs);
        // A child that failed has said so in one byte.
        if ready.read(&mut [0])? != 0 {
            bail!("the child failed");
        }
        let created = start.elapsed();
        drop((overlay, ready));

        let start = Instant::now();
        fs::write(cgroup.join("cgroup.kill"), "1")?;
        let status = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        drop(cgroup_fd);
        fs::remove_dir(&cgroup)?;
        fs::remove_dir_all(&work)?;
        fs::remove_dir_all(&upper)?;
        let destroyed = start.elapsed();
        if status.is_none_or(|s| s.exit_status().is_some()) {
            bail!("init did not live until it was killed");
        }
        println!("{} {}", created.as_nanos(), destroyed.as_nanos());
        Ok(())
    }

    /// In the child, from clone to exec.
    fn inside(&self, overlay: BorrowedFd, netns: Option<&File>) -> i32 {
        let error = match self.enter(overlay, netns) {
            Ok(()) => linux::init::become_init(self.init.as_fd()),
            Err(error) => error,
        };
        eprintln!("floor: {error}");
        1
    }

    fn enter(&self, overlay: BorrowedFd, netns: Option<&File>) -> io::Result<()> {
        if let Some(netns) = netns {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        mount::make_all_private()?;
        mount::attach(overlay, &self.root)?;
        rustix::process::chdir(&self.root)?;
        let no_dev = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let put = |kind: &str, at: &str, opts: &[Opt], attributes| {
            mount::attach(mount::detached(kind, opts, attributes)?.as_fd(), Path::new(at))
        };
        put("proc", "proc", &[], no_dev | MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
        put(
            "tmpfs",
            "dev",
            &[Opt::Text("size", "64k"), Opt::Text("mode", "755")],
            MountAttrFlags::MOUNT_ATTR_NOSUID,
        )?;
        for (name, major, minor) in DEVICES {
            let device = rustix::fs::makedev(major, minor);
            rustix::fs::mknodat(CWD, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)?;
        }
        fs::create_dir("dev/pts")?;
        fs::create_dir("dev/shm")?;
        put(
            "devpts",
            "dev/pts",
            &[Opt::Flag("newinstance"), Opt::Text("ptmxmode", "0666")],
            MountAttrFlags::empty(),
        )?;
        put("tmpfs", "dev/shm", &[Opt::Text("size", "64m")], no_dev)?;
        put("sysfs", "sys", &[], no_dev | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        mount::pivot_to_cwd()?;
        rustix::system::sethostname(b"floor").map_err(Into::into)
    }

    fn remove(&self) -> Result<()> {
        fs::remove_dir(&self.cgroup)?;
        fs::remove_dir(&self.root)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_pairs() {
        let pair = (Duration::from_nanos(5), Duration::from_nanos(7));
        assert_eq!(parse("5 7\n").unwrap(), [pair]);
        assert!(parse("5\n").is_err());
    }
}
