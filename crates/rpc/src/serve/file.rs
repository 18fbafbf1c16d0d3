//! Files: read, write, stat, list, mkdir, move, remove, watch.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use api::{
    Error, Result,
    arrow::{ByteStream, Chronus, FileBody},
    file::{
        FileInfo, FileKind, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery,
        WatchQuery, WriteQuery,
    },
};
use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderValue, header};

use super::{answer, call::Call};
use crate::{FILE_HEADER, route::Reply};

type To = Arc<dyn Chronus>;

pub(crate) async fn read(to: To, call: Call) -> Reply {
    let query: ReadQuery = call.query()?;
    query.validate()?;
    let (offset, length) = (query.offset, query.length);
    let FileBody { info, body } = to.file_read(query).await?;
    // The kernel's own files claim to be empty and are not: theirs ends where it ends.
    let exact = (info.kind == FileKind::File && info.size_bytes > 0)
        .then(|| info.size_bytes.saturating_sub(offset).min(length.unwrap_or(u64::MAX)));
    let body = match exact {
        Some(left) => Box::pin(Exact { body, left }),
        None => body,
    };
    let mut response = answer::bytes("application/octet-stream", body).await?;
    let headers = response.headers_mut();
    if let Some(bytes) = exact {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    headers.insert(header::CONTENT_DISPOSITION, disposition(&info.name.0));
    if let Some(value) = file_header(&info) {
        headers.insert(FILE_HEADER, value);
    }
    Ok(response)
}

/// As many bytes as were announced: what a file grew by meanwhile is cut, what it lost is an error.
struct Exact {
    body: ByteStream,
    left: u64,
}

impl Stream for Exact {
    type Item = Result<Bytes>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let item = std::task::ready!(self.body.as_mut().poll_next(cx));
        Poll::Ready(Some(match item {
            Some(Ok(mut bytes)) => {
                bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= bytes.len() as u64;
                Ok(bytes)
            }
            Some(Err(e)) => {
                self.left = 0;
                Err(e)
            }
            None => {
                self.left = 0;
                Err(Error::internal("the file became shorter while it was read"))
            }
        }))
    }
}

/// RFC 6266 with RFC 5987: any name survives, in `filename*`.
fn disposition(name: &[u8]) -> HeaderValue {
    let plain: String = name
        .iter()
        .map(|b| if b.is_ascii_alphanumeric() || b"._- ".contains(b) { *b as char } else { '_' })
        .collect();
    let exact: String = name
        .iter()
        .map(|b| {
            if b.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(b) {
                (*b as char).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect();
    HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}"))
        .unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

/// JSON that is ASCII alone: what is not is escaped.
fn file_header(info: &FileInfo) -> Option<HeaderValue> {
    let json = serde_json::to_string(info).ok()?;
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) {
            ascii.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
        }
    }
    HeaderValue::from_str(&ascii).ok()
}

pub(crate) async fn write(to: To, call: Call) -> Reply {
    let query: WriteQuery = call.query()?;
    query.validate()?;
    Ok(answer::json(&to.file_write(query, call.stream()).await?))
}

pub(crate) async fn stat(to: To, call: Call) -> Reply {
    let query: StatQuery = call.query()?;
    query.validate()?;
    Ok(answer::json(&to.file_stat(query).await?))
}

pub(crate) async fn list(to: To, call: Call) -> Reply {
    let query: FileListQuery = call.query()?;
    query.validate()?;
    Ok(answer::json(&to.file_list(query).await?))
}

pub(crate) async fn mkdir(to: To, mut call: Call) -> Reply {
    let request: MkdirRequest = call.json().await?;
    request.validate()?;
    Ok(answer::json(&to.file_mkdir(request).await?))
}

pub(crate) async fn rename(to: To, mut call: Call) -> Reply {
    let request: MoveRequest = call.json().await?;
    request.validate()?;
    Ok(answer::json(&to.file_move(request).await?))
}

pub(crate) async fn remove(to: To, call: Call) -> Reply {
    let query: RemoveQuery = call.query()?;
    query.validate()?;
    to.file_remove(query).await?;
    Ok(answer::nothing())
}

pub(crate) async fn watch(to: To, call: Call) -> Reply {
    let query: WatchQuery = call.query()?;
    query.validate()?;
    Ok(answer::lines(to.file_watch(query).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_goes_into_headers() {
        for name in ["文件 报告.txt", "a\"b\\c\n", "\u{1F600}", "-x", ""] {
            let value = disposition(name.as_bytes());
            assert!(value.to_str().unwrap().starts_with("attachment; filename="), "{name:?}");
        }
        assert!(disposition("é".as_bytes()).to_str().unwrap().ends_with("filename*=UTF-8''%C3%A9"));
        assert!(disposition(&[0xff]).to_str().unwrap().ends_with("''%FF"));
        let info = FileInfo {
            name: "文\u{7f}\u{1F600}\n".into(),
            path: vec![0xff, 0xfe].into(),
            kind: FileKind::File,
            size_bytes: 1,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified_ms: -1,
            symlink_target: None,
        };
        let value = file_header(&info).unwrap();
        assert_eq!(serde_json::from_slice::<FileInfo>(value.as_bytes()).unwrap(), info);
    }
}
