//! The store that nodes share, as callers see it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::image::ImageInfo;

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
}
