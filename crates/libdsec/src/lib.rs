//! The SDK of DSec: isolated machines for agents, from async Rust.
//!
//! ```no_run
//! # async fn demo() -> libdsec::Result<()> {
//! use libdsec::{Client, SandboxSpec};
//!
//! let client = Client::from_env()?;
//! let sandbox = client.create(SandboxSpec::new("debian")).await?;
//! let out = sandbox.exec(["echo", "hello"]).output().await?;
//! assert_eq!(out.stdout_text(), "hello\n");
//! sandbox.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Read in this order: [`Client`], [`Sandbox`], [`Exec`] and [`Process`], [`Files`], [`Port`], [`Images`], [`Environments`].
//!
//! **Errors.** Every call answers [`Error`]: a stable [`Code`], a message, the request id. [`Code::class`] says what
//! to do about it. A command that fails is no error: look at its [`Exit`], or call [`ExecOutput::check`].
//!
//! **Retries.** Only what is safe to send twice is sent twice, a bounded number of times: reads, and what carries an
//! idempotency key (create, exec). A dropped connection under a running command is re-attached by byte offset.
//!
//! **Dropping.** Nothing here kills on drop: a dropped [`Sandbox`] lives until it is stopped or its TTL runs out, a
//! dropped [`Process`] goes on and can be attached to again by its id.

mod access;
mod build;
mod client;
mod context;
mod environment;
mod image;
mod retry;
mod sandbox;
mod text;

pub use access::{Keys, Projects};
pub use api::{
    Class, Code, Error, ExecId, RequestId, Result, SandboxId,
    arrow::ByteStream,
    environment::{EnvironmentInfo, EnvironmentPart, EnvironmentRequest},
    exec::{Command, ExecInfo, ExecResult, Exit, ExitReason, Output, PtySize},
    file::{FileInfo, FileKind, TarReport, WatchEvent, WatchKind},
    frame::Stream as OutputStream,
    iam::{
        Action, Amount, AuditEntry, AuditQuery, Dimension, KeyInfo, KeyMade, KeyRequest, PrincipalKind,
        ProjectInfo, ProjectRequest, ProjectUpdate, Quota, Rights,
    },
    image::{
        BUILD_CACHE, ExportFormat, ImageConfig, ImageInfo, ImportFormat, ImportQuery, LayerKind,
        MERGE_THRESHOLD_BYTES, MergeRequest, TagRequest, Usage,
    },
    limit,
    pull::{Credentials, PullProgress, PullRequest, Secret},
    snapshot::{Checkpoint, ForkRequest, PackReport, PackRequest, Scrub, ScrubRule, Scrubbed},
    spec::{Kind, ListQuery, Network, QosClass, SandboxInfo, SandboxSpec, Scratch},
    state::State,
    store::{GcReport, GcRequest, LayerStatus, PublishReport},
};
pub use build::{Build, BuildEvent, Built};
pub use client::Client;
pub use context::{Context, default_context_path};
pub use environment::Environments;
pub use image::{Images, Progress};
pub use rpc::PortConnection;
pub use sandbox::{
    Sandbox,
    create::Created,
    exec::{Exec, ExecOutput},
    files::Files,
    port::Port,
    process::{Event, Process, ProcessControl, StdinWriter, TextEvent},
    tree::stream_of,
};
pub use text::TextDecoder;
