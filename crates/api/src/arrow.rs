//! One trait per arrow of the picture. A service implements its trait; `rpc` serves any implementation over HTTP and
//! gives back a client that implements the same trait, so a hop in the same process is a plain call.
//!
//! ```text
//! libdsec --Front--> apiserver --Edge--> edge --Chronus--> aether
//! ```
//! `Front` is `Edge` + `Images` + `Access`: what a caller sees of a cluster is what it sees of a node, and who may see it.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

use crate::{
    Code, Error, ExecId, Result, SandboxId,
    environment::{EnvironmentInfo, EnvironmentRequest},
    exec::{AttachQuery, ExecInfo, ExecRequest, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
    frame::{ClientFrame, ServerFrame},
    iam::{
        AuditEntry, AuditQuery, KeyInfo, KeyMade, KeyRequest, ProjectInfo, ProjectRequest, ProjectUpdate,
        Tally, TallyQuery,
    },
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest},
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, CreateRequest, ListQuery, SandboxInfo, TtlRequest},
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};

/// A stream of results; an error ends it.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;
/// A body of any size.
pub type ByteStream = BoxStream<Result<Bytes>>;

/// Frames in flight on each side of an attached exec before the sender waits.
pub const FRAMES_IN_FLIGHT: usize = 8;

/// An attached exec. Dropping it detaches; the command goes on.
pub struct ExecStream {
    /// Known before the first frame.
    pub exec_id: ExecId,
    pub input: mpsc::Sender<ClientFrame>,
    pub output: mpsc::Receiver<ServerFrame>,
}

/// A file's bytes and what it is. `info.size_bytes` is the whole file's; the body may be a part of it.
pub struct FileBody {
    pub info: FileInfo,
    pub body: ByteStream,
}

/// A connection to a port inside: raw bytes both ways, closed by dropping either end.
pub struct PortStream {
    /// Bytes to the port. Dropping it half-closes.
    pub input: mpsc::Sender<Bytes>,
    /// Bytes from the port, until it closes.
    pub output: mpsc::Receiver<Result<Bytes>>,
}

/// The service of aether: what can be done inside one sandbox.
#[async_trait]
pub trait Chronus: Send + Sync {
    /// Starts a command and attaches to it. With an idempotency key seen before: attaches to that run from its start.
    async fn exec(&self, request: ExecRequest) -> Result<ExecStream>;
    /// Attaches to an exec, alive or remembered, from the offsets on. Errors: `not_found`.
    async fn exec_attach(&self, exec_id: ExecId, from: AttachQuery) -> Result<ExecStream>;
    async fn exec_list(&self) -> Result<Vec<ExecInfo>>;
    async fn exec_inspect(&self, exec_id: ExecId) -> Result<ExecInfo>;
    async fn exec_signal(&self, exec_id: ExecId, request: SignalRequest) -> Result<()>;

    async fn file_read(&self, query: ReadQuery) -> Result<FileBody>;
    async fn file_write(&self, query: WriteQuery, body: ByteStream) -> Result<FileInfo>;
    async fn file_stat(&self, query: StatQuery) -> Result<FileInfo>;
    async fn file_list(&self, query: FileListQuery) -> Result<Vec<FileInfo>>;
    async fn file_mkdir(&self, request: MkdirRequest) -> Result<FileInfo>;
    async fn file_move(&self, request: MoveRequest) -> Result<FileInfo>;
    async fn file_remove(&self, query: RemoveQuery) -> Result<()>;
    async fn file_watch(&self, query: WatchQuery) -> Result<BoxStream<Result<WatchEvent>>>;
    async fn tar_get(&self, query: TarQuery) -> Result<ByteStream>;
    async fn tar_put(&self, query: TarQuery, body: ByteStream) -> Result<TarReport>;

    /// Dials a TCP port on the sandbox's loopback.
    async fn port_dial(&self, port: u16) -> Result<PortStream>;
}

/// A node agent, or a cluster that looks like one.
#[async_trait]
pub trait Edge: Send + Sync {
    /// One event for each sandbox asked for, in order of readiness. Errors before the first event sink the whole
    /// request (bad spec, unknown image); later ones are events.
    async fn create(&self, request: CreateRequest) -> Result<BoxStream<CreateEvent>>;
    async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>>;
    async fn inspect(&self, id: &SandboxId) -> Result<SandboxInfo>;
    /// Answers when nothing is left of it. Errors: `not_found` where it is unknown, `deadline_exceeded`.
    async fn stop(&self, id: &SandboxId) -> Result<()>;
    async fn set_ttl(&self, id: &SandboxId, request: TtlRequest) -> Result<SandboxInfo>;
    /// Keeps its disk as it is now. Errors: `not_found`, `conflict`, `already_exists`, `quota_exceeded`, `unsupported`
    /// (its disk is memory).
    async fn checkpoint(&self, _id: &SandboxId, _request: CheckpointRequest) -> Result<Checkpoint> {
        Err(no_disk())
    }
    /// Oldest first.
    async fn checkpoint_list(&self, _id: &SandboxId) -> Result<Vec<Checkpoint>> {
        Err(no_disk())
    }
    /// Errors: `not_found`.
    async fn checkpoint_remove(&self, _id: &SandboxId, _name: &str) -> Result<()> {
        Err(no_disk())
    }
    /// Answers when it runs again. Errors: `not_found`, `conflict`.
    async fn rollback(&self, _id: &SandboxId, _request: RollbackRequest) -> Result<SandboxInfo> {
        Err(no_disk())
    }
    /// Errors before the first event: as of the other verbs here, and of a create.
    async fn fork(&self, _id: &SandboxId, _request: ForkRequest) -> Result<BoxStream<CreateEvent>> {
        Err(no_disk())
    }
    /// Errors: `not_found`, `conflict`, `unsupported`, `invalid_argument`.
    async fn pack_diff(&self, _id: &SandboxId, _request: PackRequest) -> Result<PackReport> {
        Err(no_disk())
    }
    /// The way inside. Errors: `not_found`, `sandbox_broken`, `conflict` (not running yet).
    async fn chronus(&self, id: &SandboxId) -> Result<Arc<dyn Chronus>>;
    /// What lives there, by project: an edge's word to an apiserver.
    async fn tally(&self, _: TallyQuery) -> Result<Tally> {
        Err(Error::new(Code::Unsupported, "this is no edge: it keeps no tally"))
    }
}

/// Projects, keys and the audit log, as the key that asks may see them: of an apiserver.
#[async_trait]
pub trait Access: Send + Sync {
    /// Errors: `permission_denied`, `not_found` (the parent), `already_exists`, `invalid_argument`.
    async fn project_create(&self, _: ProjectRequest) -> Result<ProjectInfo> {
        Err(no_access())
    }
    /// By path.
    async fn project_list(&self) -> Result<Vec<ProjectInfo>> {
        Err(no_access())
    }
    /// `project`: an id or a path. Errors: `permission_denied`, `not_found`.
    async fn project_inspect(&self, _project: &str) -> Result<ProjectInfo> {
        Err(no_access())
    }
    /// Errors: `permission_denied`, `not_found`, `invalid_argument`.
    async fn project_update(&self, _project: &str, _: ProjectUpdate) -> Result<ProjectInfo> {
        Err(no_access())
    }
    /// Errors: `permission_denied`, `not_found`, `conflict`.
    async fn project_remove(&self, _project: &str) -> Result<()> {
        Err(no_access())
    }
    /// Errors: `permission_denied`, `not_found` (the project), `already_exists`.
    async fn key_create(&self, _: KeyRequest) -> Result<KeyMade> {
        Err(no_access())
    }
    /// Oldest first.
    async fn key_list(&self) -> Result<Vec<KeyInfo>> {
        Err(no_access())
    }
    /// `key`: an id, or the name of one that works. Errors: `permission_denied`, `not_found`.
    async fn key_revoke(&self, _key: &str) -> Result<()> {
        Err(no_access())
    }
    /// Newest first. Errors: `permission_denied`.
    async fn audit_list(&self, _: AuditQuery) -> Result<Vec<AuditEntry>> {
        Err(no_access())
    }
}

/// The catalogue of a node.
#[async_trait]
pub trait Images: Send + Sync {
    async fn import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo>;
    /// Fetches an image from a registry. The stream ends with `pulled` or an error; dropped before, the pull ends. Errors
    /// before the image's manifest is known are no events.
    async fn pull(&self, _: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        Err(Error::new(Code::Unsupported, "this node pulls no images"))
    }
    async fn image_list(&self) -> Result<Vec<ImageInfo>>;
    /// `reference`: `name`, `name:version` or a digest. Errors: `not_found`.
    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo>;
    /// Errors: `not_found`, `conflict` while a sandbox lives on it.
    async fn image_remove(&self, reference: &str) -> Result<()>;
    /// Takes as long as its layers are large. Errors: `not_found`, `already_exists`.
    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo>;
    /// Another name for the layers of an image, which may have another config there. Errors: `not_found`.
    async fn image_tag(&self, _reference: &str, _request: TagRequest) -> Result<ImageInfo> {
        Err(Error::new(Code::Unsupported, "this node gives images no other names"))
    }
    /// An archive, as it is made. Errors: `not_found`, `invalid_argument` where the format cannot hold the image.
    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream>;
    /// Sends what the store that nodes share does not have of an image. Errors: `not_found`, `unsupported` (there is no
    /// store), `no_capacity` (it cannot be reached).
    async fn image_publish(&self, _reference: &str) -> Result<PublishReport> {
        Err(no_store())
    }
    /// What the store has. Errors: `unsupported`, `no_capacity`.
    async fn store_list(&self) -> Result<Vec<ImageInfo>> {
        Err(no_store())
    }
    /// Removes a name from the store, or an image that has none by its digest; its data goes with the next
    /// [`Images::store_gc`]. Errors: `not_found`, `conflict` where the image of a digest has a name, `unsupported`,
    /// `no_capacity`.
    async fn store_remove(&self, _reference: &str) -> Result<()> {
        Err(no_store())
    }
    /// Removes what no image of the store needs. Takes as long as the store is large. Errors: `unsupported`,
    /// `no_capacity`, `rate_limited`, `internal` where something that may name data is damaged.
    async fn store_gc(&self, _request: GcRequest) -> Result<GcReport> {
        Err(no_store())
    }
    /// Where the bytes of an image's layers are, lowest first. Errors: `not_found`.
    async fn image_layers(&self, _reference: &str) -> Result<Vec<LayerStatus>> {
        Err(no_store())
    }
    /// The same again is answered as if it were new. Errors: `not_found`, `invalid_argument` for a part of another kind,
    /// `already_exists`.
    async fn environment_create(&self, _: EnvironmentRequest) -> Result<EnvironmentInfo> {
        Err(no_environments())
    }
    async fn environment_list(&self) -> Result<Vec<EnvironmentInfo>> {
        Err(no_environments())
    }
    /// `reference`: `name` or `name:version`. Errors: `not_found`.
    async fn environment_inspect(&self, _reference: &str) -> Result<EnvironmentInfo> {
        Err(no_environments())
    }
    /// Errors: `not_found`, `conflict` while a sandbox lives on it.
    async fn environment_remove(&self, _reference: &str) -> Result<()> {
        Err(no_environments())
    }
}

/// The error of what has sandboxes without a disk to copy.
fn no_disk() -> Error {
    Error::new(Code::Unsupported, "these sandboxes have no disk that could be copied")
}

/// The error of what lets everybody in.
fn no_access() -> Error {
    Error::new(Code::Unsupported, "projects and keys are an apiserver's")
}

/// The error of a catalogue of images alone.
pub fn no_environments() -> Error {
    Error::new(Code::Unsupported, "this node keeps no environments")
}

/// The error of a node that shares nothing.
pub fn no_store() -> Error {
    Error::new(Code::Unsupported, "this node has no store: start it with --store URL")
}

/// Everything a caller can ask.
pub trait Front: Edge + Images + Access {}
impl<T: Edge + Images + Access + ?Sized> Front for T {}
