//! What an edge says of what lives on it, for quota.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;

/// `POST /v1/tally`, of an edge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TallyQuery {
    /// The last tally of this life of the edge that is taken in: what it finished need not be told again.
    #[serde(default)]
    pub started_ms: u64,
    #[serde(default)]
    pub sequence: u64,
}

/// What an edge says at one moment: what lives there, without what is of reservations that it still works on, and which of
/// those it has finished. Each replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// When the edge's process started, in milliseconds since the Unix epoch: the number begins anew with it.
    pub started_ms: u64,
    /// Grows with each tally of this process.
    pub sequence: u64,
    /// By project id; what is below a project is not in it.
    pub projects: Vec<(String, Amount)>,
    /// Reservations that it works on: they must not end meanwhile.
    pub working: Vec<String>,
    /// Reservations that are finished.
    pub finished: Vec<String>,
}
