//! `/files`: a file's bytes out, files in.

use api::file::{FileInfo, ReadQuery, WriteQuery};
use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

use super::{Inside, gunzip::gunzip, multipart};
use crate::{
    body::{self, Query},
    fault::Fault,
};

/// Of one upload.
pub(super) const FILES_MAX: usize = 1000;
/// Metadata of files has no native form.
const METADATA_PREFIX: &str = "x-metadata-";

/// What an upload answers for each file.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

impl Written {
    pub(super) fn of(info: &FileInfo) -> Self {
        Self { name: info.name.to_text(), path: info.path.to_text(), kind: "file" }
    }
}

pub(super) async fn read(call: Inside) -> Result<Response, Fault> {
    let query = Query::of(&call.uri);
    let user = query.get("username").map(str::to_owned).or(call.user);
    let path = query.get("path").ok_or_else(|| Fault::invalid("path: it is missing"))?;
    let path = call.face.in_home(&call.id, &call.chronus, user.as_deref(), path).await?;
    let mut read = ReadQuery::new(path);
    read.user = user;
    read.validate()?;
    let range = range_of(&call.headers);
    if let Some((from, length)) = range {
        (read.offset, read.length) = (from, length);
    }
    let file = call.chronus.file_read(read).await?;
    let size = file.info.size_bytes;
    let mut response = Response::new(Body::from_stream(file.body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some((from, length)) = range {
        let end = length.map_or(size, |length| from.saturating_add(length).min(size));
        if from >= size {
            let fault = format!("Range: the file has {size} bytes");
            return Err(Fault::new(StatusCode::RANGE_NOT_SATISFIABLE, "out_of_range", fault));
        }
        let range = format!("bytes {from}-{}/{size}", end - 1);
        headers.insert(
            header::CONTENT_RANGE,
            HeaderValue::from_str(&range).map_err(|_| Fault::invalid("Range"))?,
        );
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// The first byte and how many of `Range: bytes=FROM-[TO]`. Other forms are ignored, as HTTP allows.
fn range_of(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (from, to) = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let from: u64 = from.parse().ok()?;
    if to.is_empty() {
        return Some((from, None));
    }
    let to: u64 = to.parse().ok()?;
    (to >= from).then(|| (from, Some((to - from).saturating_add(1))))
}

pub(super) async fn write(call: Inside, body: Body) -> Result<Response, Fault> {
    if let Some(name) = call.headers.keys().find(|name| name.as_str().starts_with(METADATA_PREFIX)) {
        return Err(Fault::unsupported(format!("{name}: files carry no metadata here")));
    }
    let query = Query::of(&call.uri);
    let user = query.get("username").map(str::to_owned).or_else(|| call.user.clone());
    let path = match query.get("path") {
        Some(path) => Some(call.face.in_home(&call.id, &call.chronus, user.as_deref(), path).await?),
        None => None,
    };
    let text = |name| call.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (media, encoding) = (text(header::CONTENT_TYPE), text(header::CONTENT_ENCODING));
    let written = if media.starts_with("multipart/form-data") {
        if !matches!(encoding, "" | "identity") {
            return Err(unknown_encoding(encoding));
        }
        multipart::write(call, body, path, user).await?
    } else {
        let path = path.ok_or_else(|| Fault::invalid("path: it is missing"))?;
        let packed = match encoding {
            "" | "identity" => false,
            "gzip" => true,
            other => return Err(unknown_encoding(other)),
        };
        let mut query = WriteQuery::new(path);
        query.user = user;
        query.validate()?;
        let bytes = rpc::byte_stream(body);
        let bytes = if packed { gunzip(bytes) } else { bytes };
        vec![Written::of(&call.chronus.file_write(query, bytes).await?)]
    };
    Ok(body::json(StatusCode::OK, &written))
}

fn unknown_encoding(encoding: &str) -> Fault {
    let encoding: String = encoding.chars().take(40).collect();
    let message =
        format!("Content-Encoding: `{encoding}` is not known here; send gzip (not multipart) or none");
    Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_argument", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range = |text: &'static str| {
            range_of(&HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(text))]))
        };
        assert_eq!(range("bytes=0-9"), Some((0, Some(10))));
        assert_eq!(range("bytes=5-"), Some((5, None)));
        for other in ["bytes=-5", "bytes=9-3", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b"] {
            assert_eq!(range(other), None, "{other}");
        }
    }
}
