//! The store that nodes share, as callers see it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, image::ImageInfo};

/// `GET /v1/images`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageListQuery {
    /// What the store has, instead of what the node has.
    #[serde(default)]
    pub store: bool,
}

/// What a publish has done. All counts are 0 where the store had everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishReport {
    pub image: ImageInfo,
    pub layers_sent: u64,
    pub objects_sent: u64,
    /// Compressed.
    pub bytes_sent: u64,
}

/// Where the bytes of a layer are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerStatus {
    /// `blake3:<64 hex digits>`
    pub digest: String,
    /// Its files' bytes come from the store when they are read.
    pub remote: bool,
    /// Names, modes and the like; always on the node.
    pub meta_bytes: u64,
    /// The files' bytes.
    pub blob_bytes: u64,
    /// Of a remote layer: how many of `blob_bytes` this node has fetched; more than all where it fetched some again.
    /// Counted until the node goes down.
    pub fetched_bytes: u64,
    /// Those of `fetched_bytes` that came before anyone asked, because other nodes' first sandboxes had read them.
    #[serde(default)]
    pub prefetched_bytes: u64,
}

/// What is younger is never removed from the store: a publish may be about to name it.
pub const GC_OLDER_THAN_MS_MIN: u64 = 60 * 60 * 1000;

/// `POST /v1/store/gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GcRequest {
    /// Remove what has been there for so long and nothing names; at least an hour.
    pub older_than_ms: u64,
    /// Remove nothing; tell what would be.
    #[serde(default)]
    pub dry_run: bool,
}

impl GcRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        if self.older_than_ms < GC_OLDER_THAN_MS_MIN {
            let text = format!("older_than_ms: {} is less than {GC_OLDER_THAN_MS_MIN}", self.older_than_ms);
            return Err(Error::invalid(text));
        }
        Ok(())
    }
}

/// What a garbage collection of the store has removed, or, of a dry run, would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcReport {
    pub dry_run: bool,
    pub layers_kept: u64,
    pub layers_removed: u64,
    pub objects_removed: u64,
    pub traces_removed: u64,
    /// As stored.
    pub bytes_removed: u64,
    /// Could not be removed: the next collection tries again.
    pub failed: u64,
}
