//! `GET /v1/images/{reference}/export`: an image as an archive.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an export is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// An OCI layout in a tar, a gzip layer for each of the image's layers.
    #[default]
    Oci,
    /// The same layers as `docker load` takes them.
    Docker,
    /// The root file system as one tar, as a sandbox finds it.
    Tar,
}

/// The query of an export. The answer is the archive, as it is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportQuery {
    #[serde(default)]
    pub format: ExportFormat,
}
