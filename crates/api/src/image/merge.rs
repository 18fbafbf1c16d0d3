//! `POST /v1/images/{reference}/merge`: adjacent layers of an image become one, under a new version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Result, spec};

/// Larger layers are shared by many images; what is smaller costs a mount and a lookup each.
pub const MERGE_THRESHOLD_BYTES: u64 = 3 << 30;

/// The body of a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeRequest {
    /// Of the same name; not taken yet.
    pub version: String,
    /// Neighbours are merged as long as they are not larger together.
    #[serde(default = "default_threshold")]
    pub threshold_bytes: u64,
}

fn default_threshold() -> u64 {
    MERGE_THRESHOLD_BYTES
}

impl MergeRequest {
    pub fn new(version: impl Into<String>) -> Self {
        Self { version: version.into(), threshold_bytes: MERGE_THRESHOLD_BYTES }
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("version", &self.version)
    }
}
