//! The whole edge: its parts, its start, its end, and the verbs of `api::arrow::Edge`.

mod recover;

use std::{
    collections::HashMap,
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use api::{
    Code, Error, Result, SandboxId,
    arrow::{Access, BoxStream, Chronus, Edge},
    iam::{Tally, TallyQuery},
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, CreateRequest, Kind, ListQuery, SandboxInfo, TtlRequest},
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use runtime::Runtime;
use tokio::sync::{RwLock, Semaphore};

use crate::{
    admission::{Admission, Load},
    config::EdgeConfig,
    fetch::Fetches,
    gate::Gate,
    layers::Layers,
    ledger::Ledger,
    pack,
    publish::{self, Publishing},
    registry::Registry,
    tally::Tallies,
    usage::{self, Usages},
    uses::Uses,
};

/// Exports and merges at once: far fewer than there are threads that may block, which sandboxes need too.
const IMAGE_JOBS_MAX: usize = 16;
/// Sandboxes that are stopped, or let go, at once.
const STOPS_IN_FLIGHT: usize = 32;

/// What the actors and the requests share.
pub(crate) struct Parts {
    pub(crate) config: EdgeConfig,
    pub(crate) runtimes: HashMap<Kind, Arc<dyn Runtime>>,
    pub(crate) layers: Arc<dyn Layers>,
    pub(crate) ledger: Ledger,
    pub(crate) admission: Arc<Admission>,
    pub(crate) gate: Gate,
    /// Packs at once.
    pub(crate) packs: Semaphore,
    pub(crate) registry: Registry,
    pub(crate) uses: Arc<Uses>,
    pub(crate) usages: Usages,
    pub(crate) tallies: Arc<Tallies>,
    /// Requests look images up as readers, a removal is a writer: no image goes between look-up and use.
    pub(crate) images: RwLock<()>,
    /// Exports and merges: each has a thread for as long as its image is large, or its reader slow.
    pub(crate) image_jobs: Arc<Semaphore>,
    pub(crate) fetches: Fetches,
    pub(crate) publishing: Publishing,
    /// Nobody new comes in.
    pub(crate) closing: AtomicBool,
}

/// A node agent. Its sandboxes outlive it: dropping it, or [`EdgeNode::shutdown`], leaves them to the next one.
pub struct EdgeNode {
    pub(crate) parts: Arc<Parts>,
}

impl EdgeNode {
    /// Starts an edge, and takes over what an earlier one left: what lives is adopted, what does not is cleaned up
    /// (in the background; it is listed as `stopping` until it is gone). One edge at a time may use the directories.
    ///
    /// Errors: `invalid_argument` for the config, `internal` where the directories cannot be used.
    pub async fn start(
        config: EdgeConfig,
        runtimes: HashMap<Kind, Arc<dyn Runtime>>,
        layers: Arc<dyn Layers>,
    ) -> Result<Arc<Self>> {
        config.validate()?;
        let unusable = |error: io::Error| {
            tracing::error!(%error, "edge: its directories cannot be used");
            Error::internal("the node cannot use its ledger or spool directory")
        };
        let ledger = Ledger::open(&config.ledger_dir).map_err(unusable)?;
        fs::create_dir_all(&config.spool_dir).map_err(unusable)?;
        let entries = ledger.load().map_err(unusable)?;
        let publishing = Publishing::open(&config.publish_file).map_err(unusable)?;
        let parts = Arc::new(Parts {
            admission: Arc::new(Admission::new(config.capacity.clone())),
            gate: Gate::new(config.creates_in_flight_max, config.creates_queued_max),
            packs: Semaphore::new(pack::PACKS_IN_FLIGHT),
            registry: Registry::default(),
            uses: Arc::default(),
            usages: Usages::open(&config.usage_file),
            tallies: Arc::default(),
            images: RwLock::default(),
            image_jobs: Arc::new(Semaphore::new(IMAGE_JOBS_MAX)),
            fetches: Fetches::default(),
            publishing,
            closing: AtomicBool::new(false),
            config,
            runtimes,
            layers,
            ledger,
        });
        recover::recover(&parts, entries).await;
        publish::resume(&parts);
        Ok(Arc::new(Self { parts }))
    }

    /// Resources that are given away now.
    pub fn load(&self) -> Load {
        self.parts.admission.load()
    }

    /// Ends the edge and leaves its sandboxes alive, for the next one. Creates that are under way are finished first;
    /// attached clients are let go.
    pub async fn shutdown(&self) {
        self.parts.closing.store(true, Ordering::Release);
        let all = stream::iter(self.parts.registry.all());
        all.for_each_concurrent(STOPS_IN_FLIGHT, |sandbox| async move { sandbox.leave().await }).await;
        usage::write(&self.parts).await;
    }

    /// Stops every sandbox and takes no new one. Errors: the first that could not be stopped in time.
    pub async fn stop_all(&self) -> Result<()> {
        self.parts.closing.store(true, Ordering::Release);
        // Twice: a create that had passed the check when it closed enters the registry after the first look.
        for _ in 0..2 {
            let all = stream::iter(self.parts.registry.all());
            let stops = all.map(|sandbox| async move { sandbox.stop().await });
            let results: Vec<Result<()>> = stops.buffer_unordered(STOPS_IN_FLIGHT).collect().await;
            results.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }
}

impl Parts {
    /// Errors: `unsupported`.
    pub(crate) fn runtime(&self, kind: Kind) -> Result<Arc<dyn Runtime>> {
        self.runtimes.get(&kind).cloned().ok_or_else(|| {
            let name = serde_json::to_value(kind).unwrap_or_default();
            Error::new(Code::Unsupported, format!("kind: this node does not run {name} sandboxes"))
        })
    }

    /// Errors: `no_capacity`.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(Code::NoCapacity, "this node is shutting down").retry_after_ms(1000));
        }
        Ok(())
    }
}

#[async_trait]
impl Edge for EdgeNode {
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        crate::create::create(&self.parts, request).await
    }
    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        Ok(self.parts.registry.list(&query)?.iter().map(|s| s.info()).collect())
    }
    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.parts.registry.get(id).map(|s| s.info())
    }
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.parts.registry.get(id)?.stop().await
    }
    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        request.validate()?;
        self.parts.registry.get(id)?.set_ttl(request.ttl_ms).await
    }
    async fn checkpoint(&self, id: &SandboxId, request: CheckpointRequest) -> Result<Checkpoint> {
        request.validate()?;
        self.parts.registry.get(id)?.checkpoint(request.name).await
    }
    async fn checkpoint_list(&self, id: &SandboxId) -> Result<Vec<Checkpoint>> {
        Ok(self.parts.registry.get(id)?.checkpoints())
    }
    async fn checkpoint_remove(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.parts.registry.get(id)?.remove_checkpoint(name).await
    }
    async fn rollback(&self, id: &SandboxId, request: RollbackRequest) -> Result<SandboxInfo> {
        request.validate()?;
        self.parts.registry.get(id)?.rollback(&request.checkpoint).await
    }
    async fn fork(&self, id: &SandboxId, request: ForkRequest) -> Result<BoxStream<CreateEvent>> {
        crate::fork::fork(&self.parts, id, request).await
    }
    async fn pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        pack::pack_diff(&self.parts, id, request).await
    }
    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        self.parts.registry.get(id)?.chronus()
    }
    async fn tally(&self, query: TallyQuery) -> Result<Tally> {
        Ok(self.parts.tallies.take(query, &self.parts.registry))
    }
}

/// An edge lets in whoever reaches it.
impl Access for EdgeNode {}
