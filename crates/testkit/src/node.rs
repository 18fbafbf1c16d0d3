//! A real node of a test's own: `dsec up` on a scratch directory and a free port, with the test image as `debian`.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use libdsec::{Client, Context, ImportQuery, LayerKind, Sandbox, SandboxSpec};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Leak, artifact::Artifacts};

const GONE_WITHIN: Duration = Duration::from_secs(30);
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A running node. Stop it by [`Node::stop`]; dropped without (a panic), it is ended as well as can be.
pub struct Node {
    artifacts: Artifacts,
    scratch: PathBuf,
    /// Of the data directory in it.
    name: String,
    leak: Leak,
    access: Mutex<Context>,
    /// More flags of `dsec up`.
    flags: Vec<String>,
    /// Of every `dsec` that it runs.
    env: Vec<(String, String)>,
    stopped: bool,
}

impl Node {
    /// Starts it and imports the image. Errors: what is missing, or the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// As [`Node::start`], with more flags for `dsec up`.
    pub async fn start_with(flags: &[&str]) -> Result<Self> {
        Self::start_at("data", flags).await
    }

    /// As [`Node::start`], with a data directory of that name.
    pub async fn start_in(name: &str) -> Result<Self> {
        Self::start_at(name, &[]).await
    }

    /// With no image, and more environment for every `dsec`.
    pub fn start_bare(flags: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        Self::bare_at("data", flags, env)
    }

    async fn start_at(name: &str, flags: &[&str]) -> Result<Self> {
        let node = Self::bare_at(name, flags, &[])?;
        node.import().await?;
        Ok(node)
    }

    fn bare_at(name: &str, flags: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let artifacts = Artifacts::find()?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let scratch = PathBuf::from(format!("/var/tmp/dsec-testkit-{}-{serial}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let leak = Leak::snapshot(&scratch.join(name));
        let access = Mutex::new(Context { url: String::new(), api_key: String::new(), data: None });
        let flags = flags.iter().map(|f| (*f).to_owned()).collect();
        let name = name.to_owned();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let node = Self { artifacts, scratch, name, leak, access, flags, env, stopped: false };
        node.up()?;
        Ok(node)
    }

    /// The test image, as `debian`.
    pub async fn import(&self) -> Result<()> {
        let query = ImportQuery {
            user: Some("user".into()),
            workdir: Some("/home/user".into()),
            env: Some("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ..ImportQuery::new("debian", LayerKind::Base)
        };
        self.client().images().import_path(&self.artifacts.rootfs, query, |_| ()).await.context("import")?;
        Ok(())
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.join(&self.name)
    }

    pub fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }

    /// A directory for files of the test itself; it goes with the node.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// `dsec <args>`, talking to this node.
    pub fn cli(&self) -> Command {
        let mut command = Command::new(&self.artifacts.dsec);
        command.env("DSEC_CONTEXT", self.scratch.join("context.toml")).env("DSEC_DATA", self.data());
        command.env("DSEC_AETHER", &self.artifacts.aether);
        command.env_remove("DSEC_URL").env_remove("DSEC_API_KEY").env_remove("DSEC_STORE");
        command.envs(self.env.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Where it answers, and the key.
    pub fn access(&self) -> Context {
        self.access.lock().expect("no panic while held").clone()
    }

    /// A client with connections of its own.
    pub fn client(&self) -> Client {
        Client::from_context(&self.access()).expect("the server wrote a sound URL")
    }

    /// A spec on the test image.
    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec::new("debian")
    }

    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_with(self.spec()).await
    }

    /// Panics where it cannot be made: a test has no use for the error.
    pub async fn sandbox_with(&self, spec: SandboxSpec) -> Sandbox {
        self.client().create(spec).await.unwrap_or_else(|e| panic!("create: {e}\n{}", self.log_tail()))
    }

    /// The server's process id.
    pub fn pid(&self) -> Result<u32> {
        let text = fs::read_to_string(self.data().join("dsec.pid")).context("the pid file")?;
        text.trim().parse().context("the pid file")
    }

    /// Resident memory of the server, in bytes.
    pub fn server_rss_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
    }

    /// SIGKILL to the server alone.
    pub fn kill9(&self) -> Result<()> {
        let pid = self.pid()?;
        kill_process(Pid::from_raw(pid as i32).context("pid")?, Signal::KILL)?;
        wait_gone(pid)
    }

    /// Starts the server on the data that is there.
    pub fn up(&self) -> Result<()> {
        let out = self.cli().args(["up", "--detach", "--listen", "127.0.0.1:0"]).args(&self.flags).output();
        let out = out.context("dsec up")?;
        if !out.status.success() {
            bail!("dsec up: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
        }
        let access = Context::load(&self.scratch.join("context.toml"))?.context("no context file")?;
        *self.access.lock().expect("no panic while held") = access;
        Ok(())
    }

    /// SIGKILL, then a new server on the same data.
    pub fn restart_kill9(&self) -> Result<()> {
        self.kill9()?;
        self.up()
    }

    /// The slots that it holds now, pool and sandboxes.
    pub fn slots(&self) -> std::collections::BTreeSet<u32> {
        crate::leak::slots(&self.data())
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.data().join("dsec.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// `dsec down`, then nothing of it may be left.
    pub fn stop(mut self) -> Result<()> {
        self.stopped = true;
        let out = self.cli().arg("down").output().context("dsec down")?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            self.stopped = false;
            bail!("dsec down: {}\n{said}\n{}", out.status, self.log_tail());
        }
        let checked = self.leak.check();
        fs::remove_dir_all(&self.scratch).context("the scratch directory")?;
        checked
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.stopped {
            return;
        }
        let _ = writeln!(std::io::stderr(), "testkit: the end of the server's log\n{}", self.log_tail());
        let down = self.cli().arg("down").output();
        if !down.is_ok_and(|out| out.status.success()) {
            let _ = writeln!(std::io::stderr(), "testkit: {} is left as it is", self.scratch.display());
            return;
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Errors: it is still there.
pub fn wait_gone(pid: u32) -> Result<()> {
    let start = Instant::now();
    while let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
        // Its parent may be slow.
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')) {
            return Ok(());
        }
        if start.elapsed() > GONE_WITHIN {
            bail!("process {pid} does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
