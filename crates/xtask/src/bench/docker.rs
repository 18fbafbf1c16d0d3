//! dockerd beside ours: a daemon of our own in private mount and network namespaces, with its data in a scratch
//! directory. Where it does not start, the section says why and is left out.
//!
//! Debian's packages are unpacked, not installed: that would start a daemon of the machine's.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::Report;
use crate::step;

/// dockerd with an empty data directory takes 2 to 5 s here.
const START: Duration = Duration::from_secs(30);
const RUNS_MAX: usize = 20;
/// With runc, which is installed for a section of its own.
const PACKAGES: [&str; 3] = ["docker.io", "containerd", "tini"];

pub fn measure(scratch: &Path, tar: &Path, runs: usize, report: &mut Report) -> Result<()> {
    let programs = match programs(scratch) {
        Ok(programs) => programs,
        Err(error) => {
            println!("bench: Debian's packages do not unpack here, so docker is left out: {error:#}");
            return Ok(());
        }
    };
    let mut daemon = match Daemon::start(scratch, programs) {
        Ok(daemon) => daemon,
        Err(error) => {
            println!("bench: dockerd does not start here, so docker is left out: {error:#}");
            return Ok(());
        }
    };
    let measured = daemon.measure(tar, runs.min(RUNS_MAX), report);
    daemon.stop()?;
    measured
}

/// A PATH with dockerd, containerd and docker in front.
fn programs(scratch: &Path) -> Result<OsString> {
    let (debs, root) = (scratch.join("debs"), scratch.join("docker-programs"));
    fs::create_dir_all(&debs)?;
    let mut download = Command::new("apt-get");
    step::output(download.args(["download", "--quiet"]).args(PACKAGES).current_dir(&debs))?;
    for deb in fs::read_dir(&debs)? {
        step::output(Command::new("dpkg-deb").arg("--extract").arg(deb?.path()).arg(&root))?;
    }
    let ours = ["usr/sbin", "usr/bin"].map(|dir| root.join(dir));
    let rest = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(ours.into_iter().chain(std::env::split_paths(&rest)))?)
}

struct Daemon {
    child: Child,
    /// The PATH of the programs.
    path: OsString,
    dir: PathBuf,
}

impl Daemon {
    fn start(scratch: &Path, path: OsString) -> Result<Self> {
        let dir = scratch.join("docker");
        fs::create_dir_all(&dir)?;
        let log = fs::File::create(dir.join("log"))?;
        // The pid namespace takes containerd and its shims along when we end dockerd.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "dockerd"]);
        command.args(["--iptables=false", "--bridge=none", "--cgroup-parent=/dsec-bench-docker", "--host"]);
        command.arg(format!("unix://{}", socket(&dir).display()));
        command.arg("--data-root").arg(dir.join("data")).arg("--exec-root").arg(dir.join("exec"));
        command.arg("--pidfile").arg(dir.join("pid"));
        command.env("PATH", &path).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start unshare")?;
        let mut daemon = Self { child, path, dir };
        if let Err(error) = daemon.wait_ready() {
            let tail = fs::read_to_string(daemon.dir.join("log")).unwrap_or_default();
            daemon.stop()?;
            return Err(error.context(tail.lines().rev().take(3).collect::<Vec<_>>().join(" | ")));
        }
        Ok(daemon)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended: {status}");
            }
            if step::output(self.docker().arg("version")).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        bail!("it did not answer within {} s", START.as_secs())
    }

    fn docker(&self) -> Command {
        let mut command = Command::new("docker");
        command.env("PATH", &self.path);
        command.arg("--host").arg(format!("unix://{}", socket(&self.dir).display()));
        command
    }

    fn measure(&self, tar: &Path, runs: usize, report: &mut Report) -> Result<()> {
        step::output(self.docker().arg("import").arg(tar).arg("dsec-bench"))?;
        let mut samples = Vec::new();
        for _ in 0..runs {
            let start = Instant::now();
            step::output(self.docker().args([
                "run",
                "--rm",
                "--network",
                "none",
                "dsec-bench",
                "/bin/true",
            ]))?;
            samples.push(start.elapsed().as_secs_f64() * 1e3);
        }
        report.put_samples("peer.docker.run_true", "ms", &samples);
        Ok(())
    }

    /// SIGKILL to unshare ends the whole pid namespace; then its cgroups are empty and go.
    fn stop(&mut self) -> Result<()> {
        let _ = self.child.kill();
        self.child.wait().context("cannot wait for dockerd")?;
        std::thread::sleep(Duration::from_millis(300));
        let Ok(hierarchies) = fs::read_dir("/sys/fs/cgroup") else { return Ok(()) };
        for dir in hierarchies.flatten().map(|e| e.path()).chain([PathBuf::from("/sys/fs/cgroup")]) {
            remove_cgroup(&dir.join("dsec-bench-docker"));
        }
        Ok(())
    }
}

/// Short, because a socket's path has 107 bytes at most and a checkout may lie deep.
fn socket(dir: &Path) -> PathBuf {
    let long = dir.join("docker.sock");
    if long.as_os_str().len() < 100 {
        long
    } else {
        std::env::temp_dir().join(format!("dsec-bench-{}.sock", std::process::id()))
    }
}

fn remove_cgroup(dir: &Path) {
    for child in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        remove_cgroup(&child.path());
    }
    let _ = fs::remove_dir(dir);
}
