//! layerd: shows the data of layers that are in the store as files, and fetches what is read of them.
//!
//! ```text
//! ensure (in the server) --starts, finds again--> holder --starts, starts again--> worker
//! kernel --/dev/fuse--> worker: serve -> chunks -> memory | cache | store
//! ```
//! The holder has `/dev/fuse` and the mount and does nothing else; the worker has the same descriptor and does the rest.
//! One that is killed costs nothing while the other lives: see `docs/rfd/0003-store.md`.
//!
//! Read in this order: [`ensure`], [`holder`], [`worker`], `wire`, `chunks`, `cache`, `touched`,
//! `prefetch`.
//!
//! Invariants: no byte is answered that was not checked against the layer's digest; what cannot be had is EIO, never
//! zeros; nothing here needs to know what was served before it was started.

mod cache;
mod chunks;
pub mod ensure;
pub mod holder;
mod layers;
mod memory;
mod place;
mod prefetch;
mod touched;
mod wire;
pub mod worker;

pub use place::{Counts, MANIFEST, Place, fetched};
