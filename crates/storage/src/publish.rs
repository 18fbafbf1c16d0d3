//! publish: a layer's files become objects and a manifest; an image becomes a record.
//!
//! Invariant: what names is written after what it names, so a reader never finds a name without its thing.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Instant,
};

use api::image::ImageInfo;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    error::{Error, Result},
    manifest::{BATCH_CHUNKS, Batch, Chunk, MANIFEST_BYTES_MAX, Manifest, Object},
    record,
    store::{Store, bare, object_name},
    table::{CHUNK_BYTES, Value},
};

/// Batches on their way at once: each is up to 16 MiB of memory.
const BATCHES_IN_FLIGHT: usize = 4;
const LEVEL: i32 = 3;
/// Of a layer whose objects get old while they are sent.
const SENDS_MAX: usize = 4;
const SIZES_IN_FLIGHT: usize = 16;

/// A layer on this node's disk.
#[derive(Debug, Clone)]
pub struct Layer {
    pub digest: String,
    pub files: u64,
    pub meta_bytes: u64,
    pub blob_bytes: u64,
    pub data_bytes: u64,
    pub meta: PathBuf,
    pub blob: Option<PathBuf>,
}

/// What the store had of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    Absent,
    There,
    /// A collection may be about to take it.
    Old,
}

/// What a publish has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Compressed.
    pub bytes: u64,
    pub objects: u64,
    pub layers: u64,
}

impl Store {
    /// Whether the store has all of a layer.
    pub async fn has_layer(&self, digest: &str) -> Result<bool> {
        Ok(self.size(&layer_name(digest)).await?.is_some())
    }

    /// Sends what the store does not have of a layer, and makes what it has young enough that no collection takes it before
    /// an image names it.
    pub async fn put_layer(&self, layer: &Layer) -> Result<Sent> {
        let mut sent = Sent::default();
        if self.keep_layer(&layer.digest).await? {
            return Ok(sent);
        }
        for _ in 0..SENDS_MAX {
            let begun = Instant::now();
            let (manifest, is_old_there) = self.send(layer, &mut sent).await?;
            // What was sent first may be old by now: once more, which sends only that.
            if begun.elapsed() > self.ages.refresh {
                continue;
            }
            if is_old_there {
                tokio::time::sleep(self.ages.settle).await;
                if !self.has_all(&manifest).await? {
                    continue;
                }
            }
            let json =
                serde_json::to_vec(&manifest).map_err(|e| Error::disk("encode a manifest")(e.into()))?;
            self.put(&layer_name(&layer.digest), json.into()).await?;
            sent.layers = 1;
            return Ok(sent);
        }
        Err(Error::Unavailable("it takes a layer so slowly that what was sent is old before it ends".into()))
    }

    /// Whether the store has the layer, and keeps it for now: one that is old is made young. Its manifest is enough: what
    /// that names is not collected.
    pub async fn keep_layer(&self, digest: &str) -> Result<bool> {
        let name = layer_name(digest);
        let begun = Instant::now();
        let Some(found) = self.stat(&name).await? else { return Ok(false) };
        if found.is_younger(self.ages.refresh) {
            return Ok(true);
        }
        let check = |json: Bytes| Manifest::parse(digest, &json).map(|manifest| (manifest, json));
        let (manifest, json) = match self.document(&name, MANIFEST_BYTES_MAX, check).await {
            Ok(Some(found)) => found,
            Ok(None) | Err(Error::Damaged(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.put(&name, json).await?;
        let was_quick = begun.elapsed() <= self.ages.settle / 2;
        // Until a removal that was decided before has been done.
        tokio::time::sleep(self.ages.settle).await;
        if !self.has_layer(digest).await? {
            return Ok(false);
        }
        if was_quick || self.has_all(&manifest).await? {
            return Ok(true);
        }
        // It came back after a collection had counted: its objects went with it.
        self.remove(&name).await?;
        Ok(false)
    }

    async fn has_all(&self, manifest: &Manifest) -> Result<bool> {
        let objects = manifest.batches.iter().map(|batch| &batch.object).chain([&manifest.meta]);
        let sizes = stream::iter(objects).map(|object| async move {
            Ok::<_, Error>(self.size(&object_name(object)).await? == Some(object.bytes))
        });
        sizes.buffer_unordered(SIZES_IN_FLIGHT).try_all(std::future::ready).await
    }

    /// Sends the objects of a layer. Its manifest, and whether some were there and old.
    async fn send(&self, layer: &Layer, sent: &mut Sent) -> Result<(Manifest, bool)> {
        let chunks = layer.blob_bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        let batches = stream::iter(0..chunks.div_ceil(BATCH_CHUNKS))
            .map(|index| self.put_batch(layer, index, chunks))
            .buffered(BATCHES_IN_FLIGHT);
        let batches: Vec<(Batch, Was)> = batches.try_collect().await?;
        let path = layer.meta.clone();
        let packed = blocking(move || {
            let plain = std::fs::read(path).map_err(Error::disk("read a layer's meta"))?;
            zstd::bulk::compress(&plain, LEVEL)
                .map(|packed| (plain, packed))
                .map_err(Error::disk("compress a layer's meta"))
        });
        let (plain, packed) = packed.await?;
        let (meta, was) = self.put_object(packed.into()).await?;
        let objects =
            batches.iter().map(|(batch, was)| (batch.object.bytes, *was)).chain([(meta.bytes, was)]);
        let mut is_old_there = false;
        for (bytes, was) in objects {
            is_old_there |= was == Was::Old;
            if was != Was::There {
                sent.bytes += bytes;
                sent.objects += 1;
            }
        }
        let manifest = Manifest::new(layer, meta, batches.into_iter().map(|(batch, _)| batch).collect());
        if !manifest.covers(&plain) {
            // A damaged disk of ours must not become everybody's layer.
            return Err(Error::Disk {
                what: "publish a layer that is damaged on this node",
                source: std::io::Error::other(layer.digest.clone()),
            });
        }
        Ok((manifest, is_old_there))
    }

    async fn put_batch(&self, layer: &Layer, index: usize, chunks: usize) -> Result<(Batch, Was)> {
        let Some(blob) = layer.blob.clone() else {
            return Err(Error::Disk {
                what: "find a layer's blob",
                source: std::io::ErrorKind::NotFound.into(),
            });
        };
        let size = layer.blob_bytes;
        let (table, packed) = blocking(move || pack(&blob, size, index, chunks)).await?;
        let (object, was) = self.put_object(packed.into()).await?;
        Ok((Batch { object, chunks: table }, was))
    }

    /// The object, and what was there of it.
    async fn put_object(&self, bytes: Bytes) -> Result<(Object, Was)> {
        let size = bytes.len() as u64;
        let object = Object { hash: Value(*blake3::hash(&bytes).as_bytes()), bytes: size };
        let name = object_name(&object);
        let was = match self.stat(&name).await? {
            // One of another size was cut short by something below us: written anew.
            Some(found) if found.bytes != size => Was::Absent,
            Some(found) if found.is_younger(self.ages.refresh) => Was::There,
            Some(_) => Was::Old,
            None => Was::Absent,
        };
        if was != Was::There {
            self.put(&name, bytes).await?;
        }
        Ok((object, was))
    }

    /// Names an image, whose layers are there.
    pub async fn put_image(&self, image: &ImageInfo) -> Result<()> {
        let json = record::encode(image)?;
        self.put(&record::stack_name(&image.digest), json.clone()).await?;
        self.put(&record::image_name(&image.name, &image.version), json).await
    }
}

pub(crate) fn layer_name(digest: &str) -> String {
    format!("layers/{}.json", bare(digest))
}

/// The chunks of one batch, compressed, and their table.
fn pack(blob: &Path, size: u64, index: usize, chunks: usize) -> Result<(Vec<Chunk>, Vec<u8>)> {
    use std::os::unix::fs::FileExt;
    let file = File::open(blob).map_err(Error::disk("open a layer's blob"))?;
    let first = index * BATCH_CHUNKS;
    let (mut table, mut packed, mut plain) = (Vec::new(), Vec::new(), vec![0; CHUNK_BYTES]);
    for chunk in first..chunks.min(first + BATCH_CHUNKS) {
        let start = (chunk * CHUNK_BYTES) as u64;
        let plain = &mut plain[..usize::try_from(size - start).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)];
        file.read_exact_at(plain, start).map_err(Error::disk("read a layer's blob"))?;
        let stored = zstd::bulk::compress(plain, LEVEL).map_err(Error::disk("compress a chunk"))?;
        table
            .push(Chunk { stored_bytes: stored.len() as u32, value: Value::of(plain, chunk as u64, chunks) });
        packed.extend_from_slice(&stored);
    }
    Ok((table, packed))
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::Disk { what: "work on a layer", source: std::io::Error::other(e) }))
}

/// All of a reader, at most `bytes_max`.
pub(crate) fn read_bounded(reader: impl Read, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}
