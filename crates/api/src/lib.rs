//! Data that crosses a process, and one trait per arrow of the picture. No IO.
//!
//! Read in this order: [`id`], [`error`], [`spec`], [`state`], [`exec`], [`mod@file`], [`frame`], then [`arrow`],
//! where the verbs are. Every request type refuses unknown fields; every limit sits in [`limit`].

pub mod arrow;
pub mod environment;
pub mod error;
pub mod exec;
pub mod file;
pub mod frame;
pub mod husk;
pub mod iam;
pub mod id;
pub mod image;
pub mod limit;
mod octal;
pub mod payload;
pub mod pull;
pub mod snapshot;
pub mod spec;
pub mod state;
pub mod store;

pub use error::{Class, Code, Error, Result};
pub use id::{EdgeId, ExecId, RequestId, SandboxId};
