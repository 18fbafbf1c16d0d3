//! The only road in: checks the key, names the edge by the sandbox id, relays.
//!
//! ```text
//! request -> auth (iam: who asks) -> route (rpc) -> Session (may he? how much?) -> the edge that the id names
//! ```
//! Invariants: stateless, any apiserver can serve any request; the edge in an id is a routing hint, the edge itself
//! looks the id up; no request but health and the document passes without a key, and the key goes no further.

mod access;
mod auth;
mod image;
mod inside;
mod quota;
mod rate;
mod sandbox;
mod session;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use api::{
    Code, EdgeId, Error, Result, SandboxId,
    arrow::{BoxStream, ByteStream, Chronus, Edge, Front, Images},
    environment::{EnvironmentInfo, EnvironmentRequest},
    iam::Action,
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest},
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxInfo, TtlRequest},
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};
use async_trait::async_trait;
use axum::{Router, middleware};
use iam::{Iam, Principal};

/// For the tokens of sandboxes that clients of E2B are given.
const E2B_SECRET: &str = "e2b";

/// The service. A [`Session`] of it implements `Front`, as an edge does: a cluster looks like a node.
pub struct Apiserver {
    iam: Iam,
    edges: BTreeMap<EdgeId, Arc<dyn Front>>,
    known: session::Known,
    taken: Mutex<quota::Taken>,
    rates: rate::Rates,
}

pub use session::Session;

impl Apiserver {
    /// `edges`: each in this process, or an `rpc::EdgeClient`.
    pub fn new(iam: Iam, edges: impl IntoIterator<Item = (EdgeId, Arc<dyn Front>)>) -> Self {
        let edges = edges.into_iter().collect();
        Self {
            iam,
            edges,
            known: session::Known::default(),
            taken: Mutex::default(),
            rates: rate::Rates::default(),
        }
    }

    /// Its HTTP face, to be given to `rpc::serve`. It asks the edges from time to time what lives there.
    pub fn router(self) -> Router {
        native(Arc::new(self))
    }

    /// The same, and the foreign APIs beside it on the same listener, with the same keys.
    pub async fn router_with_faces(self, e2b: e2b::Config) -> Result<Router> {
        let secret = self.iam.secret(E2B_SECRET).await?;
        let apiserver = Arc::new(self);
        let keys = Arc::new(auth::Keys(apiserver.clone()));
        let router = native(apiserver.clone());
        let router = swerex::Swerex::new(keys.clone()).before(router);
        let by_token = Session { by_token: true, ..Session::new(apiserver, Principal::owner()) };
        Ok(e2b::E2b::new(Arc::new(by_token), keys, e2b, secret).before(router))
    }

    /// The edge that an id names. Errors: `not_found`, as for an id that the edge does not know.
    fn edge_of(&self, id: &SandboxId) -> Result<&Arc<dyn Front>> {
        self.edges.get(&id.edge()).ok_or_else(|| Error::not_found(format!("no sandbox `{id}`")))
    }

    /// The edge for what names none.
    fn any_edge(&self) -> Result<&Arc<dyn Front>> {
        let mut edges = self.edges.values();
        match (edges.next(), edges.next()) {
            (Some(edge), None) => Ok(edge),
            (None, _) => {
                Err(Error::new(Code::NoCapacity, "no edge is there to run sandboxes").retry_after_ms(1000))
            }
            (Some(_), Some(_)) => Err(Error::new(
                Code::Unsupported,
                "placement over several edges is not there yet: use one edge",
            )),
        }
    }
}

fn native(apiserver: Arc<Apiserver>) -> Router {
    quota::watch(&apiserver);
    let iam = apiserver.iam.clone();
    let session = move |extensions: &http::Extensions| -> Result<Arc<dyn Front>> {
        let who = extensions.get::<Principal>().cloned();
        let who = who.ok_or_else(|| Error::internal("a request came past the check of its key"))?;
        Ok(Arc::new(Session::new(apiserver.clone(), who)))
    };
    rpc::front_router_for(session).layer(middleware::from_fn_with_state(iam, auth::check))
}

#[async_trait]
impl Edge for Session {
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
        self.sandbox_create(request).await
    }
    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        self.sandbox_list(query).await
    }
    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo> {
        self.sandbox_inspect(id).await
    }
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.sandbox_stop(id).await
    }
    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo> {
        self.sandbox_set_ttl(id, request).await
    }
    async fn checkpoint(&self, id: &SandboxId, request: CheckpointRequest) -> Result<Checkpoint> {
        self.sandbox_checkpoint(id, request).await
    }
    async fn checkpoint_list(&self, id: &SandboxId) -> Result<Vec<Checkpoint>> {
        self.sandbox(id, Action::SandboxRead).await?.checkpoint_list(id).await
    }
    async fn checkpoint_remove(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.sandbox(id, Action::SandboxDisk).await?.checkpoint_remove(id, name).await
    }
    async fn rollback(&self, id: &SandboxId, request: RollbackRequest) -> Result<SandboxInfo> {
        self.sandbox_rollback(id, request).await
    }
    async fn fork(&self, id: &SandboxId, request: ForkRequest) -> Result<BoxStream<CreateEvent>> {
        self.sandbox_fork(id, request).await
    }
    async fn pack_diff(&self, id: &SandboxId, request: PackRequest) -> Result<PackReport> {
        self.sandbox_pack_diff(id, request).await
    }
    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>> {
        self.sandbox_exec(id).await
    }
}

#[async_trait]
impl Images for Session {
    async fn import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo> {
        self.image_import(query, body).await
    }
    async fn pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        self.image_pull(request).await
    }
    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        self.image_edge(Action::ImageRead)?.image_list().await
    }
    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        self.image_edge(Action::ImageRead)?.image_inspect(reference).await
    }
    async fn image_remove(&self, reference: &str) -> Result<()> {
        self.noted("image.remove", reference, async {
            self.image_edge(Action::ImageWrite)?.image_remove(reference).await
        })
        .await
    }
    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        self.noted("image.merge", reference, async {
            self.image_edge(Action::ImageWrite)?.image_merge(reference, request).await
        })
        .await
    }
    async fn image_tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        self.noted("image.tag", reference, async {
            self.image_edge(Action::ImageWrite)?.image_tag(reference, request).await
        })
        .await
    }
    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream> {
        self.image_edge(Action::ImageRead)?.image_export(reference, query).await
    }
    async fn image_publish(&self, reference: &str) -> Result<PublishReport> {
        self.noted("image.publish", reference, async {
            self.image_edge(Action::ImageWrite)?.image_publish(reference).await
        })
        .await
    }
    async fn store_list(&self) -> Result<Vec<ImageInfo>> {
        self.image_edge(Action::ImageRead)?.store_list().await
    }
    async fn store_remove(&self, reference: &str) -> Result<()> {
        self.noted("store.remove", reference, async {
            self.image_edge(Action::NodeWrite)?.store_remove(reference).await
        })
        .await
    }
    async fn store_gc(&self, request: GcRequest) -> Result<GcReport> {
        self.noted("store.gc", "", async { self.image_edge(Action::NodeWrite)?.store_gc(request).await })
            .await
    }
    async fn image_layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        self.image_edge(Action::ImageRead)?.image_layers(reference).await
    }
    async fn environment_create(&self, request: EnvironmentRequest) -> Result<EnvironmentInfo> {
        let name = format!("{}:{}", request.name, request.version);
        self.noted("environment.create", &name, async {
            self.image_edge(Action::ImageWrite)?.environment_create(request).await
        })
        .await
    }
    async fn environment_list(&self) -> Result<Vec<EnvironmentInfo>> {
        self.image_edge(Action::ImageRead)?.environment_list().await
    }
    async fn environment_inspect(&self, reference: &str) -> Result<EnvironmentInfo> {
        self.image_edge(Action::ImageRead)?.environment_inspect(reference).await
    }
    async fn environment_remove(&self, reference: &str) -> Result<()> {
        self.noted("environment.remove", reference, async {
            self.image_edge(Action::ImageWrite)?.environment_remove(reference).await
        })
        .await
    }
}
