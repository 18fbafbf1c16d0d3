//! Blobs to the disk, a few at a time, each resumed where it broke off.
//!
//! Invariants: no more is written than the manifest promises; a blob is given on when its sha256 is right; a try that
//! brings nothing is counted, and so many in a row end the pull.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::Path,
    sync::mpsc,
};

use api::{Code, Error, pull::PullProgress};
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{
    blobs::Blobs,
    failure::Failure,
    manifest::BlobPart,
    registry::{Registry, hex_of, mismatch},
    transport::Answer,
};
use crate::import::spool::Section;

/// Blobs on their way at once.
const BLOBS_AT_ONCE: usize = 3;
/// A try that brings less counts as one that brings nothing: a registry that drips must not keep a pull alive.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;

/// Fetches blobs for one pull.
pub struct Fetch<'a> {
    pub registry: &'a Registry,
    pub blobs: &'a Blobs,
    pub scratch: &'a Path,
    pub progress: &'a watch::Sender<PullProgress>,
}

/// A blob as it comes.
struct Partial {
    file: File,
    hash: Sha256,
    at: u64,
    /// How much of it the progress has been told of.
    told: u64,
}

impl Fetch<'_> {
    /// Sends each blob as soon as it and those before it are there; an error is the last that is sent.
    pub async fn all(&self, wanted: &[BlobPart], to: mpsc::Sender<(String, Result<File, Error>)>) {
        let mut seen = BTreeSet::new();
        let distinct: Vec<_> = wanted.iter().filter(|blob| seen.insert(&blob.hex)).collect();
        let fetched = stream::iter(distinct).map(async |blob| (blob, self.one(blob).await));
        let mut fetched = std::pin::pin!(fetched.buffered(BLOBS_AT_ONCE));
        while let Some((blob, result)) = fetched.next().await {
            let failed = result.is_err();
            // Whoever makes the layers may have failed meanwhile.
            if to.send((blob.hex.clone(), result)).is_err() || failed {
                return;
            }
        }
    }

    async fn one(&self, blob: &BlobPart) -> Result<File, Error> {
        if let Some(file) = self.blobs.find(&blob.hex, blob.size)
            && let Some(file) = still_right(file, blob).await
        {
            tracing::info!(blob = blob.hex, "pull: a blob is here from a pull that was killed");
            self.tell(blob.size);
            return Ok(file);
        }
        self.download(blob).await
    }

    async fn download(&self, blob: &BlobPart) -> Result<File, Error> {
        let path = self.scratch.join(format!("{}.part", blob.hex));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let mut partial = Partial { file: file.map_err(disk)?, hash: Sha256::new(), at: 0, told: 0 };
        let mut failed = 0;
        while partial.at < blob.size {
            let before = partial.at;
            let Err(failure) = self.attempt(&mut partial, blob).await else { break };
            if partial.at >= before.saturating_add(PROGRESS_BYTES_MIN) {
                failed = 0;
            }
            failed += 1;
            let Some(wait) = failure.wait(failed) else { return Err(failure.error) };
            tracing::info!(error = %failure.error, blob = blob.hex, at = partial.at, failed, "pull: resuming");
            tokio::time::sleep(wait).await;
        }
        let hex = hex_of(partial.hash.finalize().as_slice());
        if hex != blob.hex {
            return Err(mismatch("a layer", &blob.hex, &hex));
        }
        let Partial { file, .. } = partial;
        // The disk may be slow, and others are on their way meanwhile.
        let synced = tokio::task::spawn_blocking(move || file.sync_all().map(|()| file)).await;
        let file = synced.map_err(io::Error::other).flatten().map_err(disk)?;
        self.blobs.keep(&path, &blob.hex).map_err(disk)?;
        Ok(file)
    }

    /// From where it is to the end of the blob.
    async fn attempt(&self, partial: &mut Partial, blob: &BlobPart) -> Result<(), Failure> {
        let mut answer = self.registry.blob(&blob.hex, partial.at).await?;
        if answer.head.status == StatusCode::PARTIAL_CONTENT {
            check_range(&answer, partial.at)?;
        } else {
            check_length(&answer, blob.size)?;
            partial.restart().map_err(disk)?;
        }
        while let Some(bytes) = answer.next().await? {
            if bytes.len() as u64 > blob.size - partial.at {
                let message =
                    format!("a layer is larger than the {} bytes that the manifest promises", blob.size);
                return Err(Failure::last(Code::InvalidArgument, message));
            }
            partial.file.write_all(&bytes).map_err(disk)?;
            partial.hash.update(&bytes);
            partial.at += bytes.len() as u64;
            let news = partial.at.saturating_sub(partial.told);
            partial.told += news;
            self.tell(news);
        }
        if partial.at < blob.size {
            let message = format!("a layer ends after {} of {} bytes", partial.at, blob.size);
            return Err(Failure::unreachable(message));
        }
        Ok(())
    }

    fn tell(&self, bytes: u64) {
        if bytes > 0 {
            self.progress.send_modify(|progress| progress.bytes_fetched += bytes);
        }
    }
}

impl Partial {
    /// Not every registry resumes.
    fn restart(&mut self) -> io::Result<()> {
        if self.at > 0 {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            (self.hash, self.at) = (Sha256::new(), 0);
        }
        Ok(())
    }
}

/// The file, if the blob in it is whole: a machine may have lost its power since.
async fn still_right(file: File, blob: &BlobPart) -> Option<File> {
    let (hex, size) = (blob.hex.clone(), blob.size);
    let check = move || {
        let mut hash = Sha256::new();
        io::copy(&mut Section::of(&file, size), &mut hash).ok()?;
        (hex_of(hash.finalize().as_slice()) == hex).then_some(file)
    };
    tokio::task::spawn_blocking(check).await.ok().flatten()
}

fn check_range(answer: &Answer, from: u64) -> Result<(), Failure> {
    let range = answer.header(header::CONTENT_RANGE).unwrap_or_default();
    let start = range.strip_prefix("bytes ").and_then(|range| range.split_once('-'));
    match start.and_then(|(start, _)| start.trim().parse::<u64>().ok()) {
        Some(start) if start == from => Ok(()),
        _ => Err(Failure::last(
            Code::InvalidArgument,
            "the registry gives another part of a layer than was asked for",
        )),
    }
}

/// What is known to be wrong is not fetched.
fn check_length(answer: &Answer, size: u64) -> Result<(), Failure> {
    match answer.header(header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length != size => {
            let message = format!("a layer has {length} bytes, not {size} as the manifest promises");
            Err(Failure::last(Code::InvalidArgument, message))
        }
        _ => Ok(()),
    }
}

fn disk(source: io::Error) -> Error {
    crate::Error::Disk { what: "store a layer as it comes", source }.into()
}
