//! `upload`: a form with a file, where it goes, and whether it is a zip to be unpacked there.
//!
//! Their clients send the file before its place, and a zip has its directory at its end: so the file is spooled, in a
//! file without a name, within bounds. What is unpacked goes inside as a tar, which aether keeps within the target.

mod unzip;

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    time::Duration,
};

use api::{
    Code, Error,
    arrow::ByteStream,
    file::{MkdirRequest, TarQuery, WriteQuery},
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use rpc::{Field, Parts, part_bytes};
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    task::spawn_blocking,
};

use crate::{
    call::Call,
    fault::{Fault, answer},
};

/// Of one upload.
const BYTES_MAX: u64 = 2 << 30;
/// Spooled at once by one server; the others wait for their turn with their bytes unread.
const AT_ONCE: usize = 8;
const TURN_TIME_MAX: Duration = Duration::from_secs(60);
/// Of the fields that are no file.
const TEXT_BYTES_MAX: usize = 8 << 10;
const FIELDS_MAX: usize = 16;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_IN_FLIGHT: usize = 4;

/// The right to spool.
pub(crate) struct Uploads(Semaphore);

impl Default for Uploads {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

pub(crate) async fn serve(call: Call, body: Body) -> Result<Response, Fault> {
    let mut parts = Parts::of(&call.headers, body)?;
    let _turn = tokio::time::timeout(TURN_TIME_MAX, call.face.uploads.0.acquire())
        .await
        .map_err(|_| Error::new(Code::NoCapacity, "too many uploads at once").retry_after_ms(5000))?;
    let (mut file, mut target, mut unzip) = (None, None, false);
    let mut fields = 0;
    while let Some(field) = parts.next().await? {
        fields += 1;
        if fields > FIELDS_MAX {
            return Err(Fault::invalid(format!("body: over {FIELDS_MAX} fields")));
        }
        match field.name() {
            Some("file") if file.is_none() => file = Some(spool(field).await?),
            Some("target_path") => target = Some(text(field).await?),
            Some("unzip") => unzip = boolean(&text(field).await?)?,
            other => {
                let name: String = other.unwrap_or("(none)").chars().take(80).collect();
                return Err(Fault::invalid(format!("body: the field `{name}` is not known, or comes twice")));
            }
        }
    }
    let file = file.ok_or_else(|| Fault::invalid("file: it is missing"))?;
    let target = target.ok_or_else(|| Fault::invalid("target_path: it is missing"))?;
    if unzip {
        unpack(&call, file, target).await?
    } else {
        put(&call, file, target).await?
    }
    Ok(answer(StatusCode::OK, &json!({})))
}

async fn text(field: Field<'static>) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let mut parts = part_bytes(field);
    while let Some(part) = parts.next().await.transpose()? {
        bytes.extend_from_slice(&part);
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(Fault::too_large(format!("body: a field over {TEXT_BYTES_MAX} bytes")));
        }
    }
    String::from_utf8(bytes).map_err(|_| Fault::invalid("body: a field that is not UTF-8"))
}

/// As their models read one from a form.
fn boolean(text: &str) -> Result<bool, Fault> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" | "y" | "t" => Ok(true),
        "false" | "0" | "off" | "no" | "n" | "f" => Ok(false),
        _ => Err(Fault::invalid("unzip: expected true or false")),
    }
}

async fn spool(field: Field<'static>) -> Result<File, Fault> {
    let mut file = spawn_blocking(tempfile::tempfile).await.map_err(panicked)?.map_err(unspooled)?;
    let mut parts = part_bytes(field);
    let mut total = 0;
    while let Some(part) = parts.next().await.transpose()? {
        total += part.len() as u64;
        if total > BYTES_MAX {
            return Err(Fault::too_large(format!("file: over {BYTES_MAX} bytes")));
        }
        let write = move || file.write_all(&part).map(|()| file);
        file = spawn_blocking(write).await.map_err(panicked)?.map_err(unspooled)?;
    }
    file.seek(SeekFrom::Start(0)).map_err(unspooled)?;
    Ok(file)
}

fn panicked(error: tokio::task::JoinError) -> Fault {
    tracing::error!(%error, "upload: the spooling task failed");
    Error::internal("the upload could not be spooled").into()
}

fn unspooled(error: std::io::Error) -> Fault {
    tracing::error!(%error, "upload: cannot be spooled");
    Error::new(Code::DiskFull, "the node has no room to spool the upload").into()
}

async fn put(call: &Call, file: File, target: String) -> Result<(), Fault> {
    let query = WriteQuery::new(&target);
    query.validate()?;
    let body = blocking_stream(move |sink| copy(file, sink));
    call.chronus.file_write(query, body).await.map(drop).map_err(|e| Fault::of_file(e, &target))
}

async fn unpack(call: &Call, file: File, target: String) -> Result<(), Fault> {
    let opened = spawn_blocking(move || unzip::open(file)).await.map_err(panicked)??;
    let directory = MkdirRequest::new(&target);
    directory.validate()?;
    call.chronus.file_mkdir(directory).await.map_err(|e| Fault::of_file(e, &target))?;
    let body = blocking_stream(move |sink| unzip::as_tar(opened, sink));
    let unpacked = call.chronus.tar_put(TarQuery::new(&target), body).await;
    unpacked.map(drop).map_err(|e| Fault::of_file(e, &target))
}

fn copy(mut file: File, mut sink: Sink) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(()),
            count => sink.write_all(&chunk[..count])?,
        }
    }
}

/// A writer whose bytes are a stream's.
struct Sink(mpsc::Sender<api::Result<Bytes>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES);
        let bytes = Bytes::copy_from_slice(&bytes[..count]);
        self.0.blocking_send(Ok(bytes)).map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        Ok(count)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What `work` writes, as it writes it. Its error is the stream's.
fn blocking_stream(work: impl FnOnce(Sink) -> std::io::Result<()> + Send + 'static) -> ByteStream {
    let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
    spawn_blocking(move || {
        if let Err(error) = work(Sink(sender.clone())) {
            // Nobody listens where the reader has left.
            let _ = sender.blocking_send(Err(Error::invalid(format!("file: {error}"))));
        }
    });
    Box::pin(stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_of_a_form() {
        assert!(boolean("True").unwrap() && boolean("1").unwrap());
        assert!(!boolean("false").unwrap() && !boolean("off").unwrap());
        assert!(boolean("").is_err() && boolean("maybe").is_err());
    }
}
