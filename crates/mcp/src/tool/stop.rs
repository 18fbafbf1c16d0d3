//! stop_sandbox: ends one, and all that is in it.

use libdsec::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CHANGES, Call, Hints, Verb};

pub(super) struct StopSandbox;

pub(super) const NAME: &str = "stop_sandbox";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    /// The id of the sandbox that was stopped.
    stopped: String,
}

impl Verb for StopSandbox {
    const NAME: &'static str = NAME;
    const TITLE: &'static str = "Stop a sandbox";
    const ABOUT: &'static str =
        "End a sandbox. Its processes and files are lost; copy out first what is to be kept.";
    const HINTS: Hints = CHANGES;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, _: Args) -> Result<Answer> {
        let sandbox = call.sandbox_made().await?;
        sandbox.stop().await?;
        call.sandboxes.forget(&sandbox).await;
        Ok(Answer { stopped: sandbox.id().to_string() })
    }
}
