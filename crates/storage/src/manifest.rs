//! The manifest of a layer: what it is made of, and how to know it.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    table::{self, CHUNK_BYTES, Value},
};

/// Chunks of one object: 8 MiB before compression.
pub const BATCH_CHUNKS: usize = 32;
/// Bytes of a manifest: about 110 for each chunk, for the largest layer that an import makes.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 160 << 20;
/// Of a layer's meta.
const META_BYTES_MAX: u64 = 4 << 30;
const FORMAT: u32 = 1;
/// zstd adds little to what does not compress.
const STORED_BYTES_MAX: usize = CHUNK_BYTES + CHUNK_BYTES / 128 + 1024;

/// A layer in the store, by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// `blake3:<hex>`
    pub digest: String,
    pub files: u64,
    pub meta_bytes: u64,
    pub blob_bytes: u64,
    pub data_bytes: u64,
    /// The zstd of `meta.erofs`.
    pub meta: Object,
    pub chunk_bytes: usize,
    /// Of `BATCH_CHUNKS` chunks each, but the last.
    pub batches: Vec<Batch>,
}

/// An object and how long it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The blake3 of its bytes, in hex: its name.
    pub hash: Value,
    pub bytes: u64,
}

/// An object of chunks, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub object: Object,
    pub chunks: Vec<Chunk>,
}

/// One chunk of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Compressed.
    pub stored_bytes: u32,
    pub value: Value,
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot<'a> {
    pub object: &'a Object,
    pub start: u64,
    pub chunk: &'a Chunk,
    /// Of its bytes when they are unpacked.
    pub plain_bytes: usize,
}

impl Manifest {
    pub(crate) fn new(layer: &crate::publish::Layer, meta: Object, batches: Vec<Batch>) -> Self {
        Self {
            format: FORMAT,
            digest: layer.digest.clone(),
            files: layer.files,
            meta_bytes: layer.meta_bytes,
            blob_bytes: layer.blob_bytes,
            data_bytes: layer.data_bytes,
            meta,
            chunk_bytes: CHUNK_BYTES,
            batches,
        }
    }

    /// Reads one, and checks that it holds together. That it is the layer's is not known before its meta is there:
    /// [`Manifest::covers`].
    pub fn parse(digest: &str, json: &[u8]) -> Result<Self> {
        let damaged = || Error::Damaged(format!("manifest of layer {digest}"));
        let manifest: Self = serde_json::from_slice(json).map_err(|_| damaged())?;
        if manifest.format != FORMAT || manifest.chunk_bytes != CHUNK_BYTES {
            let text = format!("layer {digest} is of a format that this version does not know");
            return Err(Error::Config(text));
        }
        let chunks = usize::try_from(manifest.blob_bytes.div_ceil(CHUNK_BYTES as u64)).unwrap_or(usize::MAX);
        let (last, full) = match manifest.batches.split_last() {
            Some((last, full)) => (last.chunks.len(), full),
            None => (0, &[][..]),
        };
        let shaped = manifest.digest == digest
            && manifest.meta_bytes <= META_BYTES_MAX
            && manifest.meta.bytes <= META_BYTES_MAX
            && manifest.batches.len() == chunks.div_ceil(BATCH_CHUNKS)
            && full.iter().all(|b| b.chunks.len() == BATCH_CHUNKS)
            && full.len() * BATCH_CHUNKS + last == chunks
            && manifest.batches.iter().all(Batch::is_sound);
        if shaped { Ok(manifest) } else { Err(damaged()) }
    }

    pub fn chunks(&self) -> usize {
        self.blob_bytes.div_ceil(CHUNK_BYTES as u64) as usize
    }

    /// Whether `meta` and the chunk table are those of the digest.
    pub fn covers(&self, meta: &[u8]) -> bool {
        let values: Vec<Value> = self.batches.iter().flat_map(|b| &b.chunks).map(|c| c.value).collect();
        let mut hasher = blake3::Hasher::new();
        hasher.update(meta).update(table::root(&values).as_bytes());
        format!("blake3:{}", hasher.finalize().to_hex()) == self.digest
    }

    /// None past the end.
    pub fn spot(&self, index: usize) -> Option<Spot<'_>> {
        let batch = self.batches.get(index / BATCH_CHUNKS)?;
        let chunk = batch.chunks.get(index % BATCH_CHUNKS)?;
        let before = &batch.chunks[..index % BATCH_CHUNKS];
        let start = before.iter().map(|c| u64::from(c.stored_bytes)).sum();
        let left = self.blob_bytes - (index * CHUNK_BYTES) as u64;
        let plain_bytes = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        Some(Spot { object: &batch.object, start, chunk, plain_bytes })
    }

    /// The bytes of a chunk, from what is stored of it. Errors: they are not its bytes.
    pub fn unpack(&self, index: usize, stored: &[u8]) -> Result<Vec<u8>> {
        let damaged = || Error::Damaged(format!("chunk {index} of layer {}", self.digest));
        let spot = self.spot(index).ok_or_else(damaged)?;
        let plain = zstd::bulk::decompress(stored, spot.plain_bytes).map_err(|_| damaged())?;
        let is_it = plain.len() == spot.plain_bytes
            && Value::of(&plain, index as u64, self.chunks()) == spot.chunk.value;
        if is_it { Ok(plain) } else { Err(damaged()) }
    }
}

impl Batch {
    fn is_sound(&self) -> bool {
        let total: u64 = self.chunks.iter().map(|c| u64::from(c.stored_bytes)).sum();
        total == self.object.bytes
            && self.chunks.iter().all(|c| (1..=STORED_BYTES_MAX).contains(&(c.stored_bytes as usize)))
    }
}
