//! The services of a node, wired together in one process. This is the only place that knows them all.
//!
//! ```text
//! iam + edge (runtime, catalogue) -> apiserver -> HTTP
//! ```
//! Start: what is below comes first; the address is announced last, when everything answers. End: the other way
//! round. Sandboxes outlive it, unless it is told to drain; where none is left, nothing of the node stays mounted or running.

pub(crate) mod capacity;
mod key;
mod layers;
mod store;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use api::{
    arrow::Edge,
    spec::{Kind, ListQuery},
};
use apiserver::Apiserver;
use edge::{EdgeConfig, EdgeNode, Layers};
use iam::Iam;
use image::Catalogue;
use runtime::{
    Runtime,
    container::{self, Container},
    fake::FakeRuntime,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
};

use crate::{config::Config, node};

/// Runs until SIGTERM or Ctrl-C. Sandboxes live on: the next start finds them again.
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    node::open_files::set(node::open_files::SERVER);
    // First: an address that is taken must not leave a backend behind.
    let listener =
        TcpListener::bind(config.listen).await.with_context(|| format!("listening on {}", config.listen))?;
    let iam = Iam::open(config.data.join("iam.db")).await.context("the key store")?;
    let key = key::ensure(&iam, &config.data.join("key")).await?;
    let backend = Backend::start(&config).await?;
    let edge = backend.edge(&config).await.context("the edge")?;
    let address = listener.local_addr()?;
    let server = Apiserver::new(iam, [(config.edge_id()?, edge.clone() as Arc<dyn api::arrow::Front>)]);
    let router = server.router_with_faces(config.e2b.clone()).await.context("the foreign APIs")?;
    let asked = asked_to_end()?;
    config.announce(address, &key)?;
    node::log::keep_bounded(&config.data);
    tracing::info!(%address, data = %config.data.display(), "dsec is up");
    let draining = edge.clone();
    let end = async move {
        if asked.await == End::Drain {
            // Before the server goes, so that who waits for a stop is answered; no create comes in any more.
            if let Err(error) = draining.stop_all().await {
                tracing::error!(%error, "a sandbox could not be stopped");
            }
        }
    };
    rpc::serve(listener.into(), router, end).await.context("serving")?;
    edge.shutdown().await;
    let left = edge.list(ListQuery::default()).await.context("the edge")?.len();
    backend.end(config.data.clone(), left).await?;
    tracing::info!(sandboxes_left = left, "dsec is down");
    Ok(())
}

/// How the server is to end.
#[derive(PartialEq, Eq)]
enum End {
    /// Sandboxes live on.
    Leave,
    /// Every sandbox first: what `dsec down` asks for, by SIGUSR1.
    Drain,
}

fn asked_to_end() -> anyhow::Result<impl Future<Output = End> + Send + 'static> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut drain = signal(SignalKind::user_defined1())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => End::Leave,
            _ = terminate.recv() => End::Leave,
            _ = drain.recv() => End::Drain,
        }
    })
}

/// What runs the sandboxes.
enum Backend {
    Container(Arc<Container>),
    Fake(FakeRuntime),
}

impl Backend {
    async fn start(config: &Config) -> anyhow::Result<Self> {
        if config.fake {
            tracing::warn!("the fake runtime: nothing is isolated, commands are only imitated");
            return Ok(Self::Fake(FakeRuntime::new()));
        }
        if !rustix::process::geteuid().is_root() {
            bail!("dsec up needs root: it makes namespaces, cgroups and mounts");
        }
        container::run_dir::ensure(&config.data).context("the run directory")?;
        let forge = node::forge::ensure_link(&config.data).context("the link to forge")?;
        let (data, store) = (config.data.clone(), config.store.clone());
        let layerd = spawn_blocking(move || node::layerd::ensure(&data, &store)).await?.context("layerd")?;
        let backend = container::Config {
            data: config.data.clone(),
            forge,
            aether: find_aether(&config.aether)?,
            pool_size: config.pool_size,
            forge_anew: layerd == Some(layerd::ensure::Found::Started),
        };
        let started = spawn_blocking(move || Container::start(backend)).await?;
        Ok(Self::Container(Arc::new(started.context("the container runtime")?)))
    }

    /// The edge on this backend, with what an earlier one left taken over and the rest removed.
    async fn edge(&self, config: &Config) -> anyhow::Result<Arc<EdgeNode>> {
        let capacity = config.capacity.capacity()?;
        let edge_config = EdgeConfig::new(config.edge_id()?, &config.data, capacity);
        // Made by the runtime, where it has one, for the layers are on it too.
        let directory = config.data.join("volume");
        fs::create_dir_all(&directory).context("the directory of images")?;
        let place = directory.clone();
        let remote = config.data.join("layerd");
        let catalogue = spawn_blocking(move || Catalogue::with_remote(&place, &remote));
        let catalogue = Arc::new(catalogue.await?.context("the catalogue")?);
        let shared = store::Shared::open(config, catalogue.clone()).context("the store")?;
        let (runtime, layers): (Arc<dyn Runtime>, Arc<dyn Layers>) = match self {
            Self::Container(container) => (
                container.clone(),
                Arc::new(layers::Mounted::new(catalogue, shared, &directory, container.clone())),
            ),
            Self::Fake(fake) => (Arc::new(fake.clone()), catalogue),
        };
        let edge = EdgeNode::start(edge_config, HashMap::from([(Kind::Container, runtime)]), layers).await?;
        if let Self::Container(container) = self {
            let container = container.clone();
            spawn_blocking(move || container.sweep())
                .await?
                .context("removing what an earlier server left")?;
        }
        Ok(edge)
    }

    async fn end(self, data: PathBuf, sandboxes_left: usize) -> anyhow::Result<()> {
        match self {
            Self::Container(container) if sandboxes_left == 0 => {
                // Its own mount is below those that the runtime takes away.
                spawn_blocking(move || layerd::ensure::end(&data)).await?.context("ending layerd")?;
                spawn_blocking(move || container.end()).await?.context("ending the container runtime")
            }
            _ => Ok(()),
        }
    }
}

fn find_aether(configured: &Path) -> anyhow::Result<PathBuf> {
    let path = match configured.as_os_str().is_empty() {
        false => configured.to_owned(),
        true => std::env::current_exe()?.with_file_name("aether"),
    };
    if !path.is_file() {
        bail!(
            "aether, the agent of a sandbox, is not at {}: set `aether` in the configuration, or DSEC_AETHER",
            path.display()
        );
    }
    Ok(path)
}
