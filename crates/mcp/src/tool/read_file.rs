//! read_file: a piece of a file, as text or as base64.

use base64::{Engine, engine::general_purpose::STANDARD};
use libdsec::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Encoding, Hints, READS, Verb, within_bounds};
use crate::{limit, text};

pub(super) struct ReadFile;

/// A character of UTF-8 has at most this many bytes after its first.
const CONTINUATION_MAX: usize = limit::CHAR_BYTES_MAX - 1;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file; a relative path starts at the sandbox's working directory.
    path: String,
    /// The byte to start at; next_offset of the last answer goes on where it ended.
    #[serde(default)]
    offset: u64,
    /// Most bytes to read: 30000 unless told otherwise, at most 1048576.
    #[serde(default)]
    limit: Option<u64>,
    /// text refuses a file that is none; base64 takes any.
    #[serde(default)]
    encoding: Encoding,
    /// Read as this user: a name, UID or UID:GID.
    #[serde(default)]
    user: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    /// The text, or the base64.
    content: String,
    /// Of the whole file.
    size_bytes: u64,
    /// There where the file goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// Control characters that are shown as U+FFFD; base64 has the file as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    control_characters_replaced: Option<usize>,
}

impl Verb for ReadFile {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const ABOUT: &'static str = "Read a text file of the sandbox, the first 30000 bytes unless told otherwise; next_offset tells where it goes \
        on. A file that is no text is refused, unless base64 is asked for.";
    const HINTS: Hints = READS;
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let asked = args.limit.unwrap_or(limit::OUTPUT_CHARS_DEFAULT as u64);
        let length = within_bounds("limit", asked, 1, limit::READ_BYTES_MAX)?;
        let mut files = call.sandbox().await?.files();
        if let Some(user) = args.user {
            files = files.as_user(user);
        }
        let size_bytes = files.stat(&args.path).await?.size_bytes;
        let data = files.read_range(&args.path, args.offset, length).await?;
        let end = args.offset.saturating_add(data.len() as u64);
        // Files of /proc say that they are empty.
        let more = data.len() as u64 >= length && end != size_bytes;
        if args.encoding == Encoding::Base64 {
            let (content, next_offset) = (STANDARD.encode(&data), more.then_some(end));
            return Ok(Answer { content, size_bytes, next_offset, control_characters_replaced: None });
        }
        let piece = as_text(&args.path, &data, args.offset > 0, more)?;
        let replaced = piece.chars().filter(|c| text::is_control(*c)).count();
        let consumed = data.len() - if more { text::unfinished(&data) } else { 0 };
        Ok(Answer {
            content: text::clean(piece.as_bytes()),
            size_bytes,
            next_offset: more.then_some(args.offset + consumed as u64),
            control_characters_replaced: (replaced > 0).then_some(replaced),
        })
    }
}

/// The piece without the halves of characters that were cut at its ends. Errors: `invalid_argument` for what is no text.
fn as_text<'a>(path: &str, data: &'a [u8], cut_before: bool, cut_after: bool) -> Result<&'a str> {
    let is_rest = |b: &&u8| **b & 0b1100_0000 == 0b1000_0000;
    let start = if cut_before { data.iter().take(CONTINUATION_MAX).take_while(is_rest).count() } else { 0 };
    let end = data.len() - if cut_after { text::unfinished(data) } else { 0 };
    let not_text = |what: &str| {
        Error::invalid(format!("`{path}` is not text ({what}); ask for it with encoding base64"))
    };
    let piece = data.get(start..end).unwrap_or_default();
    let piece = std::str::from_utf8(piece).map_err(|_| not_text("it is not UTF-8"))?;
    if piece.contains('\0') { Err(not_text("it holds a NUL byte")) } else { Ok(piece) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_may_be_cut_anywhere_and_what_is_no_text_is_told() {
        let data = "a≤b".as_bytes();
        assert_eq!(as_text("f", data, false, false).unwrap(), "a≤b");
        assert_eq!(as_text("f", &data[..3], false, true).unwrap(), "a");
        assert_eq!(as_text("f", &data[2..], true, false).unwrap(), "b");
        assert_eq!(as_text("f", &data[2..3], true, true).unwrap(), "");
        for (bad, before, after) in
            [(&data[..3], false, false), (&data[2..], false, true), (b"a\0".as_slice(), true, true)]
        {
            let e = as_text("f", bad, before, after).unwrap_err();
            assert!(e.message.contains("base64"), "{e}");
        }
    }
}
