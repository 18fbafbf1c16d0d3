//! Pulling an image from an OCI registry.
//!
//! ```text
//! reference -> registry (auth, redirects) -> manifest of the platform -> config
//!    -> layers that the catalogue does not know -> blobs, three at a time, resumed where they break off
//!    -> import::stack, as for an archive
//! ```
//! Read in this order: [`transport`], [`auth`], [`registry`], [`manifest`], [`fetch`]. `catalogue::pull` puts them
//! together.
//!
//! Invariants: whatever a registry says is hostile until its sha256 is what a document that is believed promised; no
//! size is believed beyond the limits, and no wait is without an end; credentials go to the registry and to the token
//! server that it names, and to no host that it redirects to.

pub(crate) mod auth;
pub(crate) mod blobs;
pub(crate) mod failure;
pub(crate) mod fetch;
pub(crate) mod manifest;
pub(crate) mod registry;
pub(crate) mod transport;

use std::time::Duration;

/// A whole pull. What was fetched by then is thrown away.
pub const PULL_DEADLINE: Duration = Duration::from_secs(6 * 3600);
