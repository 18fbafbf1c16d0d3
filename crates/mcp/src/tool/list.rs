//! list_sandboxes: those in reach.

use std::time::{SystemTime, UNIX_EPOCH};

use libdsec::{Result, SandboxInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Hints, READS, Verb, line};
use crate::limit;

pub(super) struct ListSandboxes;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {}

/// A sandbox as it is shown.
#[derive(Serialize, JsonSchema)]
pub(super) struct Row {
    /// Its id, for the argument `sandbox` of other tools.
    sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    image: String,
    /// creating, running, broken or stopping.
    state: String,
    /// Seconds until it is stopped by itself.
    ttl_s: u64,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    sandboxes: Vec<Row>,
    /// There are more than are shown.
    truncated: bool,
}

impl Row {
    pub(super) fn of(info: &SandboxInfo) -> Self {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let state = serde_json::to_value(info.state).ok();
        Self {
            sandbox: info.id.to_string(),
            name: info.spec.name.as_deref().map(|name| line(name.as_bytes())),
            image: line(info.spec.image.as_bytes()),
            state: state.as_ref().and_then(|s| s.as_str()).unwrap_or("unknown").to_owned(),
            ttl_s: info.expires_ms.saturating_sub(now_ms) / 1000,
        }
    }
}

impl Verb for ListSandboxes {
    const NAME: &'static str = "list_sandboxes";
    const TITLE: &'static str = "List sandboxes";
    const ABOUT: &'static str =
        "The sandboxes there are now, with their ids, names, images and the time they have left.";
    const HINTS: Hints = READS;
    const IN_SANDBOX: bool = false;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, _: Args) -> Result<Answer> {
        let all = call.sandboxes.list().await?;
        let truncated = all.len() > limit::ROWS_MAX;
        Ok(Answer { sandboxes: all.iter().take(limit::ROWS_MAX).map(Row::of).collect(), truncated })
    }
}
