//! Requests of `filesystem.Filesystem`, as JSON. What is zero may be left out.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Path {
    pub(super) path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct List {
    pub(super) path: String,
    pub(super) depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Move {
    pub(super) source: String,
    pub(super) destination: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(super) struct Watch {
    pub(super) path: String,
    pub(super) recursive: bool,
    /// Refused when true.
    pub(super) include_entry: bool,
    /// Nothing is on the network here, so it changes nothing.
    #[serde(rename = "allowNetworkMounts")]
    pub(super) _allow_network_mounts: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(super) struct OfWatcher {
    pub(super) watcher_id: String,
}
