//! `read_file` and `write_file`: texts, as `Path.read_text` and `write_text` give and take them.

use std::time::Duration;

use api::{
    Code, Error,
    file::{ReadQuery, WriteQuery},
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::json;

use crate::{
    call::{self, Call},
    fault::{Exception, Fault, answer},
    python::{lossy, repr},
    wire::{ReadFile, WriteFile},
};

/// It is answered in one piece of JSON.
const READ_BYTES_MAX: u64 = 32 << 20;
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) async fn read(call: Call, body: Body) -> Result<Response, Fault> {
    let request: ReadFile = call::json(body).await?;
    let codec = Codec::of(request.encoding.as_deref(), request.errors.as_deref())?;
    let bytes = tokio::time::timeout(DEADLINE, bytes_of(&call, &request.path)).await;
    let bytes = bytes.map_err(|_| Error::new(Code::DeadlineExceeded, "the file was not read in time"))??;
    let content = universal_newlines(&codec.decode(&bytes)?);
    Ok(answer(StatusCode::OK, &json!({ "content": content })))
}

async fn bytes_of(call: &Call, path: &str) -> Result<Vec<u8>, Fault> {
    let mut query = ReadQuery::new(path);
    // One more, to tell a file that is too large from one that just fits.
    query.length = Some(READ_BYTES_MAX + 1);
    query.validate()?;
    let mut file = call.chronus.file_read(query).await.map_err(|e| Fault::of_file(e, path))?;
    let mut bytes = Vec::new();
    while let Some(part) = file.body.next().await {
        bytes.extend_from_slice(&part.map_err(|e| Fault::of_file(e, path))?);
        if bytes.len() as u64 > READ_BYTES_MAX {
            let message = format!("{}: over {READ_BYTES_MAX} bytes: read it in parts", repr(path));
            return Err(Fault::raised(Exception::Swerex, message));
        }
    }
    Ok(bytes)
}

pub(crate) async fn write(call: Call, body: Body) -> Result<Response, Fault> {
    let request: WriteFile = call::json(body).await?;
    let query = WriteQuery::new(&request.path);
    query.validate()?;
    let bytes = Bytes::from(request.content);
    let written = call.chronus.file_write(query, Box::pin(stream::iter([Ok(bytes)]))).await;
    written.map_err(|e| Fault::of_file(e, &request.path))?;
    Ok(answer(StatusCode::OK, &json!({})))
}

/// In text mode every kind of line's end is read as one.
fn universal_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Utf8,
    Utf8Sig,
    Ascii,
    Latin1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handler {
    Strict,
    Ignore,
    Replace,
    Backslash,
}

struct Codec {
    encoding: Encoding,
    handler: Handler,
}

impl Codec {
    /// Faults: `LookupError`, as for a name that Python does not know.
    fn of(encoding: Option<&str>, errors: Option<&str>) -> Result<Self, Fault> {
        let name = encoding.unwrap_or("utf-8");
        let encoding = match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "utf-8" | "utf8" | "u8" => Encoding::Utf8,
            "utf-8-sig" => Encoding::Utf8Sig,
            "ascii" | "us-ascii" => Encoding::Ascii,
            "latin-1" | "latin1" | "iso-8859-1" | "iso8859-1" | "l1" => Encoding::Latin1,
            _ => return Err(unknown("encoding", name)),
        };
        let name = errors.unwrap_or("strict");
        let handler = match name {
            "strict" => Handler::Strict,
            "ignore" => Handler::Ignore,
            "replace" => Handler::Replace,
            "backslashreplace" => Handler::Backslash,
            _ => return Err(unknown("error handler name", name)),
        };
        Ok(Self { encoding, handler })
    }

    fn decode(&self, bytes: &[u8]) -> Result<String, Fault> {
        let bytes = match self.encoding {
            Encoding::Latin1 => return Ok(bytes.iter().map(|b| char::from(*b)).collect()),
            Encoding::Utf8Sig => bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes),
            Encoding::Utf8 | Encoding::Ascii => bytes,
        };
        let ascii = self.encoding == Encoding::Ascii;
        if self.handler == Handler::Strict {
            let valid = match std::str::from_utf8(bytes) {
                Ok(_) if !ascii => bytes.len(),
                Ok(text) => text.bytes().position(|b| !b.is_ascii()).unwrap_or(bytes.len()),
                Err(e) => e.valid_up_to(),
            };
            if let Some(bad) = bytes.get(valid) {
                let name = if ascii { "ascii" } else { "utf-8" };
                let message = format!("'{name}' codec can't decode byte 0x{bad:02x} in position {valid}");
                return Err(Fault::raised(Exception::UnicodeDecode, message));
            }
        }
        let handler = self.handler;
        let bad = |bad: &[u8], text: &mut String| match handler {
            Handler::Strict | Handler::Ignore => {}
            Handler::Replace => text.push('\u{fffd}'),
            Handler::Backslash => bad.iter().for_each(|b| text.push_str(&format!("\\x{b:02x}"))),
        };
        if !ascii {
            return Ok(lossy(bytes, bad));
        }
        let mut text = String::with_capacity(bytes.len());
        for byte in bytes {
            if byte.is_ascii() { text.push(char::from(*byte)) } else { bad(&[*byte], &mut text) }
        }
        Ok(text)
    }
}

fn unknown(what: &str, name: &str) -> Fault {
    let name: String = name.chars().take(80).collect();
    Fault::raised(
        Exception::Lookup,
        format!(
            "unknown {what}: {name} (DSec has utf-8, ascii, latin-1; strict, ignore, replace, backslashreplace)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encoding: Option<&str>, errors: Option<&str>, bytes: &[u8]) -> Option<String> {
        Codec::of(encoding, errors).ok()?.decode(bytes).ok()
    }

    #[test]
    fn as_python_decodes() {
        assert_eq!(decoded(None, None, "é".as_bytes()).as_deref(), Some("é"));
        assert_eq!(decoded(None, None, b"a\xff"), None);
        assert_eq!(decoded(None, Some("replace"), b"a\xff").as_deref(), Some("a\u{fffd}"));
        assert_eq!(decoded(None, Some("ignore"), b"a\xffb").as_deref(), Some("ab"));
        assert_eq!(decoded(Some("ascii"), Some("backslashreplace"), b"a\xff").as_deref(), Some("a\\xff"));
        assert_eq!(decoded(Some("ascii"), None, "é".as_bytes()), None);
        assert_eq!(decoded(Some("latin-1"), None, b"\xe9").as_deref(), Some("é"));
        assert_eq!(decoded(Some("UTF_8"), None, b"x").as_deref(), Some("x"));
        assert_eq!((decoded(Some("klingon"), None, b""), decoded(None, Some("loud"), b"")), (None, None));
        assert_eq!(universal_newlines("a\r\nb\rc\n"), "a\nb\nc\n");
    }
}
