//! list_dir: what is in a directory.

use libdsec::{FileInfo, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Hints, READS, Verb, line, within_bounds};
use crate::limit;

pub(super) struct ListDir;

const DEPTH_MAX: u64 = 8;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The directory; the sandbox's working directory unless told otherwise.
    #[serde(default)]
    path: Option<String>,
    /// How many levels down, 1 to 8; 1 unless told otherwise.
    #[serde(default)]
    depth: Option<u64>,
    /// Look as this user: a name, UID or UID:GID.
    #[serde(default)]
    user: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Entry {
    path: String,
    /// file, directory, symlink, fifo, socket, char_device or block_device.
    kind: String,
    size_bytes: u64,
    /// Permissions, in octal.
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    entries: Vec<Entry>,
    /// How many there are; the rest is left out where that is more than are shown.
    total: usize,
    truncated: bool,
}

impl Entry {
    fn of(info: &FileInfo) -> Self {
        let kind = serde_json::to_value(info.kind).ok();
        Self {
            path: line(&info.path.0),
            kind: kind.as_ref().and_then(|k| k.as_str()).unwrap_or("unknown").to_owned(),
            size_bytes: info.size_bytes,
            mode: format!("{:04o}", info.mode & 0o7777),
            symlink_target: info.symlink_target.as_ref().map(|target| line(&target.0)),
        }
    }

    fn chars(&self) -> usize {
        self.path.chars().count() + self.symlink_target.as_deref().map_or(0, |t| t.chars().count())
    }
}

impl Verb for ListDir {
    const NAME: &'static str = "list_dir";
    const TITLE: &'static str = "List a directory";
    const ABOUT: &'static str =
        "The entries of a directory of the sandbox, at most 1000, with kind, size and permissions.";
    const HINTS: Hints = READS;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let depth = within_bounds("depth", args.depth.unwrap_or(1), 1, DEPTH_MAX)?;
        let mut files = call.sandbox().await?.files();
        if let Some(user) = args.user {
            files = files.as_user(user);
        }
        let found = files.list_depth(args.path.as_deref().unwrap_or("."), depth as u32).await?;
        let total = found.len();
        let mut room = limit::OUTPUT_CHARS_DEFAULT;
        let mut entries = Vec::new();
        for entry in found.iter().take(limit::ENTRIES_MAX).map(Entry::of) {
            let Some(left) = room.checked_sub(entry.chars()) else { break };
            room = left;
            entries.push(entry);
        }
        Ok(Answer { truncated: entries.len() < total, entries, total })
    }
}
