//! list_images: what create_sandbox can start from.

use libdsec::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Hints, READS, Verb, line};
use crate::limit;

pub(super) struct ListImages;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {}

#[derive(Serialize, JsonSchema)]
pub(super) struct Row {
    /// What create_sandbox takes: name:version.
    image: String,
    /// base (for `image`), workspace or toolkit.
    kind: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    images: Vec<Row>,
    /// There are more than are shown.
    truncated: bool,
}

impl Verb for ListImages {
    const NAME: &'static str = "list_images";
    const TITLE: &'static str = "List images";
    const ABOUT: &'static str = "The images that create_sandbox can start from, and the workspaces and toolkits that can be laid over them.";
    const HINTS: Hints = READS;
    const IN_SANDBOX: bool = false;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, _: Args) -> Result<Answer> {
        let all = call.sandboxes.client.images().list().await?;
        let truncated = all.len() > limit::ROWS_MAX;
        let row = |image: &libdsec::ImageInfo| Row {
            image: line(format!("{}:{}", image.name, image.version).as_bytes()),
            kind: format!("{:?}", image.kind).to_lowercase(),
        };
        Ok(Answer { images: all.iter().take(limit::ROWS_MAX).map(row).collect(), truncated })
    }
}
