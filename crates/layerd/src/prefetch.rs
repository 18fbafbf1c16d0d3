//! What a trace names is fetched before anyone asks, in its order and in large reads.
//!
//! ```text
//! first look at a layer -> trace from the store -> plan: runs of neighbours -> fetched, a few at once -> cache
//! ```
//! Invariants: demand goes first: it has places of its own, and no run starts while a demand waits for one; a chunk has
//! one flight, whoever began it; it ends where the cache would have to drop something for it.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use storage::manifest::BATCH_CHUNKS;

use crate::{
    chunks::{Chunks, Why},
    layers::Layer,
};

/// Runs on their way at once, of all layers. With the places of demand they are what a node asks of the store at once.
pub const RUNS_IN_FLIGHT: usize = 4;
/// Chunks of a run, at most: a demand that comes for one of them waits for the whole run.
const RUN_CHUNKS_MAX: usize = 8;
/// Chunks of a trace that are put in the order of the layer, to be neighbours.
const WINDOW_CHUNKS: usize = 64;
/// Chunks that nobody asked for, between two that somebody did: cheaper than another request.
const GAP_CHUNKS_MAX: usize = 1;
/// Between looks whether demand waits.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs of chunks, each of one batch, in the order of `trace`.
fn plan(trace: &[u32]) -> Vec<Range<usize>> {
    trace.chunks(WINDOW_CHUNKS).flat_map(plan_window).collect()
}

fn plan_window(window: &[u32]) -> Vec<Range<usize>> {
    let places: HashMap<usize, usize> = window.iter().enumerate().map(|(at, i)| (*i as usize, at)).collect();
    let mut indices: Vec<usize> = places.keys().copied().collect();
    indices.sort_unstable();
    // Each with the place of the first of it.
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    for index in indices {
        let place = places[&index];
        match runs.last_mut() {
            Some((first, run))
                if index - run.end <= GAP_CHUNKS_MAX
                    && index / BATCH_CHUNKS == run.start / BATCH_CHUNKS
                    && index - run.start < RUN_CHUNKS_MAX =>
            {
                run.end = index + 1;
                *first = place.min(*first);
            }
            _ => runs.push((place, index..index + 1)),
        }
    }
    runs.sort_by_key(|(place, _)| *place);
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Fetches what the layer's trace names, as far as there is one and there is room. Errors are logged: nobody waits.
pub async fn run(chunks: Arc<Chunks>, layer: Arc<Layer>) {
    let trace = match chunks.store().trace(&layer.manifest).await {
        Ok(Some(trace)) => trace,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, layer = layer.hex, "its trace cannot be had"),
    };
    let runs = stream::iter(plan(trace.chunks()));
    let fetching = runs.map(|run| fetch(&chunks, &layer, run)).buffered(RUNS_IN_FLIGHT);
    // Ends with the first that does not want more.
    let count = fetching.take_while(|goes_on| std::future::ready(*goes_on)).count().await;
    tracing::info!(layer = layer.hex, runs = count, "what its trace names is here");
}

/// False: no more.
async fn fetch(chunks: &Arc<Chunks>, layer: &Arc<Layer>, run: Range<usize>) -> bool {
    let Ok(_place) = chunks.runs_ahead.acquire().await else { return false };
    while chunks.is_crowded() {
        tokio::time::sleep(PAUSE).await;
    }
    let wanted = chunks.want_ahead(layer, run);
    if wanted.is_empty() {
        return true;
    }
    let stored: u64 = wanted.iter().map(|w| w.stored_bytes(layer)).sum();
    let has_room = chunks.has_room(stored);
    let (chunks, layer) = (chunks.clone(), layer.clone());
    // A task of its own: whoever reads may wait for these flights, so they come to their end when this one is dropped.
    let done = match has_room {
        true => tokio::spawn(chunks.fill(layer, wanted, Why::Ahead)),
        false => tokio::spawn(async move {
            chunks.give_up(&layer, wanted).await;
            false
        }),
    };
    done.await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_together_and_the_earliest_first() {
        assert_eq!(plan(&[40, 3, 41, 2, 43, 90]), [40..44, 2..4, 90..91]);
        // A batch's end, and a run's.
        assert_eq!(plan(&[30, 31, 32, 33]), [30..32, 32..34]);
        let long: Vec<u32> = (0..20).collect();
        assert_eq!(plan(&long), [0..8, 8..16, 16..20]);
        // Far apart in time: not together.
        let late: Vec<u32> = (0..WINDOW_CHUNKS as u32).map(|i| 1000 + i * 7).chain([1001]).collect();
        assert_eq!(plan(&late).last().unwrap(), &(1001..1002));
        assert!(plan(&[]).is_empty());
    }
}
