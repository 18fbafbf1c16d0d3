//! The node agent. It owns names, TTLs, capacity and the ledger of the sandboxes of one node; a runtime makes them, a
//! catalogue has their layers.
//!
//! Read in this order: [`config`], [`admission`] (may one more come), [`ledger`] (how a killed edge finds its sandboxes
//! again), [`node`] (the whole, and the start), `create` (one request, many sandboxes), `sandbox` (one sandbox: its
//! actor, its state, its execs), `image`.
//!
//! Invariants:
//! - One actor for each sandbox moves its state, and only as `api::state::TABLE` says.
//! - The ledger knows a sandbox before any trace of it exists, and until none does.
//! - No byte of an exec is acknowledged to aether before it is in a file of the edge.

pub mod admission;
mod clock;
pub mod config;
mod create;
mod fetch;
mod fork;
mod gate;
mod image;
pub mod layers;
pub mod ledger;
pub mod node;
mod pack;
mod plan;
mod publish;
mod registry;
mod sandbox;
mod tally;
mod usage;
mod uses;

pub use admission::Capacity;
pub use config::EdgeConfig;
pub use layers::{Environments, Export, Layers, Resolved, Shared};
pub use node::EdgeNode;
