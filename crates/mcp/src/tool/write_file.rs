//! write_file: a file, whole, or more at its end.

use base64::{Engine, engine::general_purpose::STANDARD};
use libdsec::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CHANGES, Call, Encoding, Hints, Verb, line};
use crate::limit;

pub(super) struct WriteFile;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file; a relative path starts at the sandbox's working directory. Its directories are made.
    path: String,
    /// What the file is to hold; at most 8 MiB.
    content: String,
    /// What `content` is.
    #[serde(default)]
    encoding: Encoding,
    /// Write after what the file holds, instead of in its place.
    #[serde(default)]
    append: bool,
    /// Write as this user: a name, UID or UID:GID.
    #[serde(default)]
    user: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    path: String,
    /// Of the whole file now.
    size_bytes: u64,
}

impl Verb for WriteFile {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const ABOUT: &'static str = "Write a file of the sandbox: in place of what it held, whole or not at all; or, with append, after it.";
    const HINTS: Hints = CHANGES;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let data = match args.encoding {
            Encoding::Text => args.content.into_bytes(),
            Encoding::Base64 => STANDARD
                .decode(args.content)
                .map_err(|e| Error::invalid(format!("content: not base64: {e}")))?,
        };
        if data.len() > limit::WRITE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "content: {} bytes, at most {}; send the rest with append",
                data.len(),
                limit::WRITE_BYTES_MAX
            )));
        }
        let mut files = call.sandbox().await?.files();
        if let Some(user) = args.user {
            files = files.as_user(user);
        }
        let info = match args.append {
            true => files.append(&args.path, data).await?,
            false => files.write(&args.path, data).await?,
        };
        Ok(Answer { path: line(&info.path.0), size_bytes: info.size_bytes })
    }
}
