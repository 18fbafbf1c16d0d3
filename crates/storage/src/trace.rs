//! The access trace of a layer: the chunks that its first readers touched, in that order, so that the next node can fetch
//! them before anyone asks.
//!
//! It is advice and nothing rests on it: one that is damaged, too long or of the future is no trace, and what it names is
//! checked as any other chunk.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    manifest::Manifest,
    store::{Store, bare},
};

/// 512 MiB of a layer: what is read later than that is no start any more.
pub const CHUNKS_MAX: usize = 2048;
/// Nodes that add to a trace. After them it stays as it is, or it would grow to all that anyone ever reads.
const RUNS_MAX: u32 = 3;
/// What a later node must add, at least, in percent of what there is.
const NEWS_PERCENT_MIN: usize = 10;
const NEWS_MIN: usize = 8;
const TRACE_BYTES_MAX: u64 = 64 << 10;
const FORMAT: u32 = 1;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    format: u32,
    digest: String,
    /// Nodes that have added to it.
    runs: u32,
    chunks: Vec<u32>,
}

impl Trace {
    /// None: it is not one of this layer.
    pub fn parse(manifest: &Manifest, json: &[u8]) -> Option<Self> {
        let trace: Self = serde_json::from_slice(json).ok()?;
        let mut seen = HashSet::new();
        let is_sound = trace.format == FORMAT
            && trace.digest == manifest.digest
            && (1..=RUNS_MAX).contains(&trace.runs)
            && trace.chunks.len() <= CHUNKS_MAX
            && trace.chunks.iter().all(|&index| (index as usize) < manifest.chunks() && seen.insert(index));
        is_sound.then_some(trace)
    }

    /// In the order in which they were touched first.
    pub fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    /// With what another node has touched. None: that adds too little to be worth a write.
    pub fn merged(manifest: &Manifest, before: Option<Self>, touched: &[u32]) -> Option<Self> {
        let mut trace = before.unwrap_or_else(|| Self {
            format: FORMAT,
            digest: manifest.digest.clone(),
            runs: 0,
            chunks: Vec::new(),
        });
        let mut seen: HashSet<u32> = trace.chunks.iter().copied().collect();
        let news: Vec<u32> = touched.iter().copied().filter(|index| seen.insert(*index)).collect();
        let is_worth_it = trace.runs < RUNS_MAX
            && news.len() >= NEWS_MIN.min(manifest.chunks())
            && news.len() * 100 >= trace.chunks.len() * NEWS_PERCENT_MIN;
        if !is_worth_it || trace.chunks.len() >= CHUNKS_MAX {
            return None;
        }
        trace.runs += 1;
        trace.chunks.extend(news);
        trace.chunks.truncate(CHUNKS_MAX);
        Some(trace)
    }
}

pub(crate) fn trace_name(digest: &str) -> String {
    format!("traces/{}.json", bare(digest))
}

impl Store {
    /// None: there is none that could be used. Errors: `Unavailable`.
    pub async fn trace(&self, manifest: &Manifest) -> Result<Option<Trace>> {
        let parse = |json: bytes::Bytes| Ok(Trace::parse(manifest, &json));
        match self.document(&trace_name(&manifest.digest), TRACE_BYTES_MAX, parse).await {
            Ok(found) => Ok(found.flatten()),
            Err(Error::Damaged(what)) => {
                tracing::warn!(what, "store: a trace is ignored");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds what a node has touched of a layer to its trace. Whether that was worth a write. Two nodes at once: the last
    /// one's stays.
    pub async fn put_trace(&self, manifest: &Manifest, touched: &[u32]) -> Result<bool> {
        let before = self.trace(manifest).await?;
        let Some(trace) = Trace::merged(manifest, before, touched) else { return Ok(false) };
        let json = serde_json::to_vec(&trace).map_err(|e| Error::disk("encode a trace")(e.into()))?;
        self.put(&trace_name(&manifest.digest), json.into()).await?;
        Ok(true)
    }
}
