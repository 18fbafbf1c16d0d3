//! A node for one run: `dsec up` on an empty data directory, the test image imported, everything gone at the end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use libdsec::{Client, Context as Access, ImportQuery, LayerKind, ListQuery, SandboxSpec};
use rustix::process::{Pid, Signal, kill_process};

/// A first start makes a volume.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// It removes a volume and a pool.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
pub const IMAGE: &str = "bench";

/// A running server and a client of it.
pub struct Node {
    server: Child,
    pub client: Client,
    data: tempfile::TempDir,
    ended: bool,
}

fn path_from_env(name: &str) -> Result<PathBuf> {
    let path =
        std::env::var_os(name).with_context(|| format!("{name} is not set; `cargo xtask bench` sets it"))?;
    Ok(PathBuf::from(path))
}

impl Node {
    /// Starts it and imports DSEC_TEST_ROOTFS as [`IMAGE`].
    pub async fn start() -> Result<Self> {
        let node = Self::bare("").await?;
        node.import().await?;
        Ok(node)
    }

    /// DSEC_TEST_ROOTFS as [`IMAGE`].
    pub async fn import(&self) -> Result<()> {
        let query = ImportQuery::new(IMAGE, LayerKind::Base);
        self.client.images().import_path(path_from_env("DSEC_TEST_ROOTFS")?, query, |_| ()).await?;
        Ok(())
    }

    /// Starts it with a configuration and no image.
    pub async fn bare(config: &str) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("dsec-bench-").tempdir_in("/var/tmp")?;
        let log = fs::File::create(data.path().join("dsec.log"))?;
        let file = data.path().join("bench.toml");
        fs::write(&file, config)?;
        let server = Command::new(path_from_env("DSEC_BINARY")?)
            .args(["up", "--listen", "127.0.0.1:0", "--no-context", "--log", "warn", "--data"])
            .arg(data.path())
            .arg("--config")
            .arg(file)
            .env("AWS_ACCESS_KEY_ID", testkit::s3::KEY)
            .env("AWS_SECRET_ACCESS_KEY", testkit::s3::KEY)
            .env("DSEC_AETHER", path_from_env("DSEC_AETHER")?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting dsec")?;
        let nowhere = Client::new("http://127.0.0.1:1", "none")?;
        let mut node = Self { server, client: nowhere, data, ended: false };
        node.client = node.ready().await?;
        Ok(node)
    }

    async fn ready(&mut self) -> Result<Client> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.server.try_wait()? {
                bail!("dsec ended at once ({status}): {}", self.log());
            }
            if let Some(access) = Access::load(&self.data.path().join("context.toml"))? {
                let client = Client::from_context(&access)?;
                if client.list(ListQuery::default()).await.is_ok() {
                    return Ok(client);
                }
            }
            if Instant::now() > deadline {
                bail!("dsec is not ready: {}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The process of the server.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// What the server complained of.
    pub fn log(&self) -> String {
        fs::read_to_string(self.data.path().join("dsec.log")).unwrap_or_default()
    }

    /// A sandbox small enough that hundreds are admitted.
    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec { memory_bytes_max: 64 << 20, disk_bytes_max: 1 << 30, ..SandboxSpec::new(IMAGE) }
    }

    /// The files of the image's layer: metadata, data.
    pub fn layer(&self) -> Result<(PathBuf, PathBuf)> {
        let layers = self.data.path().join("volume/layers");
        for entry in fs::read_dir(&layers)? {
            let dir = entry?.path();
            if dir.join("meta.erofs").exists() {
                return Ok((dir.join("meta.erofs"), dir.join("data.blob")));
            }
        }
        bail!("no layer in {}", layers.display())
    }

    /// Stops every sandbox, then the server. Errors: something would not go.
    pub async fn end(mut self) -> Result<()> {
        for info in self.client.list(ListQuery::default()).await? {
            self.client.sandbox(info).stop().await?;
        }
        self.stop_server()
    }

    fn stop_server(&mut self) -> Result<()> {
        self.ended = true;
        if let Some(pid) = Pid::from_raw(self.server.id() as i32) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + ENDED_WITHIN;
        while Instant::now() < deadline {
            if self.server.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.server.kill()?;
        self.server.wait()?;
        bail!("dsec did not end: {}", self.log())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // A run that failed midway: its sandboxes are stopped by the same tool that made them.
        let down = Command::new(path_from_env("DSEC_BINARY").unwrap_or_default())
            .args(["down", "--data"])
            .arg(self.data.path())
            .status();
        if down.is_err()
            && let Err(error) = self.stop_server()
        {
            eprintln!("bench: {error:#}");
        }
        let _ = self.server.wait();
    }
}
