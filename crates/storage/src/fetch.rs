//! fetch: a layer's manifest and meta, and its chunks, each checked before it is given out.

use std::{fs::File, path::Path};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};

use crate::{
    error::{Error, Result},
    manifest::{BATCH_CHUNKS, MANIFEST_BYTES_MAX, Manifest},
    publish::{blocking, layer_name, read_bounded},
    store::Store,
    table::{CHUNK_BYTES, Value},
};

/// Batches of a blob that is fetched whole, at once: each is up to 16 MiB of memory.
const BATCHES_IN_FLIGHT: usize = 4;

/// A chunk that was checked.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// As the store has it.
    pub stored: Bytes,
    pub plain: Bytes,
}

impl Store {
    /// The manifest and `meta.erofs` of a layer: both are those of the digest. Errors: `Missing`, `Damaged`.
    pub async fn layer(&self, digest: &str) -> Result<(Manifest, Vec<u8>)> {
        let parse = |json: Bytes| Manifest::parse(digest, &json);
        let manifest = self.document(&layer_name(digest), MANIFEST_BYTES_MAX, parse).await?;
        let manifest = manifest.ok_or_else(|| Error::Missing(format!("layer {digest}")))?;
        let damaged = || Error::Damaged(format!("layer {digest}"));
        let object = manifest.meta.clone();
        let packed = self.part(&object, 0..object.bytes, |bytes| {
            let is_it = Value(*blake3::hash(&bytes).as_bytes()) == object.hash;
            if is_it { Ok(bytes) } else { Err(damaged()) }
        });
        let packed: Bytes = packed.await?;
        blocking(move || {
            let damaged = || Error::Damaged(format!("layer {}", manifest.digest));
            let plain = zstd::Decoder::new(&packed[..]).map_err(|_| damaged())?;
            let meta = read_bounded(plain, manifest.meta_bytes + 1).map_err(|_| damaged())?;
            let is_it = meta.len() as u64 == manifest.meta_bytes && manifest.covers(&meta);
            if is_it { Ok((manifest, meta)) } else { Err(damaged()) }
        })
        .await
    }

    /// Chunks `first..first + count` in one read. They are of one batch.
    pub async fn chunks(&self, manifest: &Manifest, first: usize, count: usize) -> Result<Vec<Fetched>> {
        let damaged = || Error::Damaged(format!("chunk {first} of layer {}", manifest.digest));
        if count == 0 || first / BATCH_CHUNKS != (first + count - 1) / BATCH_CHUNKS {
            return Err(damaged());
        }
        let spots: Vec<_> = (first..first + count).map_while(|index| manifest.spot(index)).collect();
        let (Some(from), Some(to)) = (spots.first(), spots.last()) else { return Err(damaged()) };
        let range = from.start..to.start + u64::from(to.chunk.stored_bytes);
        self.part(from.object, range, |bytes| {
            let cut = spots.iter().enumerate().map(|(i, spot)| {
                let at = (spot.start - from.start) as usize;
                let stored = bytes.slice(at..at + spot.chunk.stored_bytes as usize);
                let plain = manifest.unpack(first + i, &stored)?.into();
                Ok(Fetched { stored, plain })
            });
            cut.collect()
        })
        .await
    }

    /// Writes the whole blob to `path`, a new file, and syncs nothing.
    pub async fn blob(&self, manifest: &Manifest, path: &Path) -> Result<()> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = std::sync::Arc::new(file.map_err(Error::disk("create a layer's blob"))?);
        let manifest = &manifest;
        let batches = stream::iter((0..manifest.batches.len()).map(Ok));
        batches
            .try_for_each_concurrent(BATCHES_IN_FLIGHT, |batch| {
                let file = file.clone();
                async move {
                    let first = batch * BATCH_CHUNKS;
                    let count = manifest.batches[batch].chunks.len();
                    let chunks = self.chunks(manifest, first, count).await?;
                    blocking(move || {
                        use std::os::unix::fs::FileExt;
                        let mut at = (first * CHUNK_BYTES) as u64;
                        chunks.iter().try_for_each(|chunk| {
                            let written = file.write_all_at(&chunk.plain, at);
                            at += chunk.plain.len() as u64;
                            written.map_err(Error::disk("write a layer's blob"))
                        })
                    })
                    .await
                }
            })
            .await
    }
}
