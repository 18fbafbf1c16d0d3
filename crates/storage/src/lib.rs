//! Layers and images in a store that nodes share: a directory, or an S3 bucket.
//!
//! ```text
//! publish:  layer files -> chunks -> objects -> manifest -> record
//! fetch:    record -> manifest -> meta.erofs (verified) -> chunks, when they are read
//! ```
//! Read in this order: [`table`] (what makes a chunk believed), [`manifest`], [`store`], [`publish`], [`fetch`], [`trace`], [`gc`].
//! The shape of the store, and what happens when it fails: `docs/rfd/0003-store.md`.
//!
//! Invariants: objects never change and are named by their bytes; what names an object is written after it; no byte
//! from the store is used before it is checked against a layer's digest; every call ends by a deadline.

pub mod config;
pub mod error;
pub mod fetch;
pub mod gc;
pub mod manifest;
pub mod publish;
pub mod record;
pub mod store;
pub mod table;
pub mod trace;

pub use config::StoreConfig;
pub use error::{Error, Result};
pub use manifest::Manifest;
pub use store::Store;
