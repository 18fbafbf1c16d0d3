//! Backend `container`: namespaces, cgroups, overlayfs on this node's kernel.
//!
//! This half lives in the edge's process: it makes the disk, asks [`forge`] for the rest, watches the result, and
//! takes everything apart again. What must be found again after a restart is in [`Kept`].

mod adopt;
mod cgroup;
mod create;
pub mod forge;
mod forge_client;
mod network;
mod process;
pub mod protocol;
pub mod run_dir;
mod slot;
mod snapshot;
mod stop;
mod sweep;
mod volume;
mod wire;

use std::{
    collections::HashSet,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, RwLock},
};

use api::{Error, Result, SandboxId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::{io::Interest, io::unix::AsyncFd, sync::watch};

use crate::{Handle, Plan, Record, Runtime};
use forge_client::ForgeClient;
use protocol::{Husk, Upper};
use volume::Volume;

/// How the backend is set up on a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// The edge's data directory, absolute.
    pub data: PathBuf,
    /// The forge binary.
    pub forge: PathBuf,
    /// The static aether binary.
    pub aether: PathBuf,
    /// Husks that wait in forge.
    pub pool_size: usize,
    /// Something was mounted below `data` that a forge of before does not see.
    pub forge_anew: bool,
}

/// What the ledger keeps of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    upper: Upper,
    /// Whether it has a way out.
    #[serde(default)]
    egress: bool,
    /// None until forge has answered.
    husk: Option<Husk>,
}

/// The backend.
pub struct Container {
    shared: Arc<Shared>,
}

/// What the blocking steps need.
struct Shared {
    config: Config,
    volume: Volume,
    forge: ForgeClient,
    layout: cgroup::Layout,
    /// Slots that belong to a sandbox of this edge, so that the sweep spares them.
    slots: Mutex<HashSet<u32>>,
    /// Sandboxes with a directory or an upper, for the same reason.
    names: Mutex<HashSet<SandboxId>>,
    /// Read by each create while its slot is nobody's that the sweep knows, written by the sweep.
    claiming: RwLock<()>,
}

impl Container {
    /// Mounts the volume, starts or finds forge. Blocking. Errors: what is missing on this node.
    pub fn start(config: Config) -> io::Result<Self> {
        run_dir::ensure(&config.data)?;
        let volume = Volume::ensure(&config.data)?;
        let (forge, forge_is_old) = (ForgeClient::new(&config), config.forge_anew);
        if forge_is_old {
            forge.retire()?;
        }
        forge.ensure_running()?;
        let layout = cgroup::Layout::detect()?;
        let shared = Shared {
            config,
            volume,
            forge,
            layout,
            slots: Mutex::default(),
            names: Mutex::default(),
            claiming: RwLock::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Ends forge and unmounts the volume, where no sandbox is left. Blocking.
    pub fn end(&self) -> io::Result<()> {
        self.shared.forge.retire()?;
        self.shared.sweep(|| Ok(Vec::new()))?;
        self.shared.layout.remove_parent();
        network::remove_rules();
        self.shared.volume.unmount()?;
        run_dir::unmount(&self.shared.config.data)
    }

    /// Removes what an earlier edge of this data directory left and nobody has adopted. Blocking.
    pub fn sweep(&self) -> io::Result<()> {
        self.shared.sweep(|| self.shared.forge.pooled())
    }

    /// Forgets a layer's mount: its files are about to go. Blocking.
    pub fn forget_layer(&self, digest: &str) -> io::Result<()> {
        self.shared.forge.forget(digest)
    }
}

impl Shared {
    fn run_dir(&self, id: &SandboxId) -> PathBuf {
        self.config.data.join("run").join(id.as_str())
    }

    fn socket(&self, id: &SandboxId) -> PathBuf {
        self.run_dir(id).join("chronus.sock")
    }

    fn upper_dir(&self, id: &SandboxId) -> PathBuf {
        self.volume.uppers().join(id.as_str())
    }

    fn handle(&self, id: &SandboxId, kept: &Kept, init: OwnedFd, aether: OwnedFd) -> io::Result<Handle> {
        Ok(Handle {
            record: serde_json::to_value(kept)?,
            chronus: Arc::new(rpc::ChronusClient::unix(self.socket(id))),
            ended: watch_end(init, aether)?,
        })
    }
}

/// Tells when either process has ended.
// The replacement is unsafe for the sake of types that lie about their descriptor; OwnedFd does not.
#[expect(deprecated)]
fn watch_end(init: OwnedFd, aether: OwnedFd) -> io::Result<watch::Receiver<Option<String>>> {
    let (tell, ended) = watch::channel(None);
    let init = AsyncFd::with_interest(init, Interest::READABLE)?;
    let aether = AsyncFd::with_interest(aether, Interest::READABLE)?;
    tokio::spawn(async move {
        let why = tokio::select! {
            _ = init.readable() => "its first process died",
            _ = aether.readable() => "its agent died",
            () = tell.closed() => return,
        };
        tell.send_replace(Some(why.to_owned()));
    });
    Ok(ended)
}

fn kept(record: &Record) -> Result<Kept> {
    serde_json::from_value(record.clone()).map_err(|error| {
        tracing::error!(%error, %record, "unreadable record");
        Error::internal("the ledger's record of this sandbox is unreadable")
    })
}

/// Runs a blocking step on the pool, its error logged here and made public.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    step: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let span = tracing::Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(step))
        .await
        .map_err(io::Error::other)
        .and_then(|done| done);
    done.map_err(|error| {
        tracing::error!(%error, what, "container step failed");
        match error.kind() {
            io::ErrorKind::NotFound => Error::new(api::Code::SandboxGone, format!("{what}: it is gone")),
            io::ErrorKind::TimedOut => {
                Error::new(api::Code::DeadlineExceeded, format!("{what}: not done in time"))
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::new(api::Code::NoCapacity, format!("{what}: the node's disk is full"))
                    .retry_after_ms(5_000)
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Error::new(api::Code::NoCapacity, format!("{what}: a process of the node died under it"))
                    .retry_after_ms(200)
            }
            io::ErrorKind::InvalidInput => Error::invalid(format!("{what}: {error}")),
            _ => Error::internal(format!("{what} failed on the node")),
        }
    })
}

#[async_trait]
impl Runtime for Container {
    async fn create(&self, plan: &Plan, note: &(dyn for<'r> Fn(&'r Record) + Send + Sync)) -> Result<Handle> {
        create::create(&self.shared, plan, note).await
    }

    async fn adopt(&self, id: &SandboxId, record: &Record) -> Result<Handle> {
        adopt::adopt(&self.shared, id, record).await
    }

    async fn stop(&self, id: &SandboxId, record: &Record) -> Result<()> {
        stop::stop(&self.shared, id, record, stop::remove).await
    }

    async fn reset(&self, id: &SandboxId, record: &Record) -> Result<()> {
        stop::stop(&self.shared, id, record, stop::reset).await
    }

    async fn snapshot(&self, id: &SandboxId, record: &Record, name: &str) -> Result<PathBuf> {
        snapshot::snapshot(&self.shared, id, record, name).await
    }

    async fn remove_snapshot(&self, id: &SandboxId, name: &str) -> Result<()> {
        snapshot::remove(&self.shared, id, name).await
    }
}
