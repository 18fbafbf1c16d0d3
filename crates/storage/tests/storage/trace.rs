//! Traces, and chunks whatever is done to them: no wrong byte, ever.

use std::sync::{Arc, LazyLock};

use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use proptest::prelude::*;
use storage::{
    Manifest, Store,
    table::CHUNK_BYTES,
    trace::{CHUNKS_MAX, Trace},
};

use crate::{QUICK, layer};

/// A layer of 67 chunks, the last of which is short, its manifest and what is stored of each chunk.
struct Stored {
    blob: Vec<u8>,
    manifest: Manifest,
    json: Vec<u8>,
    chunks: Vec<Vec<u8>>,
}

static STORED: LazyLock<Stored> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let objects = Arc::new(InMemory::new());
        let store = Store::over(objects.clone(), Path::default(), QUICK);
        let made = layer::made(66 * CHUNK_BYTES + 4096);
        store.put_layer(&made.layer).await.unwrap();
        let (manifest, _) = store.layer(&made.layer.digest).await.unwrap();
        let name = Path::from(format!("layers/{}.json", &made.layer.digest["blake3:".len()..]));
        let json = objects.get(&name).await.unwrap().bytes().await.unwrap().to_vec();
        let mut chunks = Vec::new();
        for index in 0..manifest.chunks() {
            chunks.push(store.chunks(&manifest, index, 1).await.unwrap().remove(0).stored.to_vec());
        }
        Stored { blob: made.blob.clone(), manifest, json, chunks }
    })
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chunk_is_its_bytes_or_an_error(
        index in 0..67usize, from in 0..67usize, cut in 0..1000usize, at in any::<prop::sample::Index>(), flip in any::<u8>(),
    ) {
        let stored = &*STORED;
        let mut bytes = stored.chunks[from].clone();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        bytes.truncate(bytes.len().saturating_sub(cut / 900 * at));
        let start = index * CHUNK_BYTES;
        let right = &stored.blob[start..(start + CHUNK_BYTES).min(stored.blob.len())];
        match stored.manifest.unpack(index, &bytes) {
            Ok(plain) => prop_assert!(plain == right),
            Err(_) => prop_assert!(flip != 0 || from != index || bytes.len() < stored.chunks[from].len()),
        }
    }

    #[test]
    fn a_manifest_that_was_changed_gives_no_wrong_byte(at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<bool>()) {
        let stored = &*STORED;
        let mut json = stored.json.clone();
        let at = at.index(json.len());
        json[at] = to;
        if cut {
            json.truncate(at);
        }
        let Ok(manifest) = Manifest::parse(&stored.manifest.digest, &json) else { return Ok(()) };
        // Its shape holds; then its table is the digest's, or it is refused.
        for (index, chunk) in stored.chunks.iter().enumerate() {
            let spot = manifest.spot(index).unwrap();
            let is_same = spot.chunk.value == stored.manifest.spot(index).unwrap().chunk.value;
            prop_assert_eq!(manifest.unpack(index, chunk).is_ok(), is_same);
        }
    }

    #[test]
    fn any_bytes_are_a_sound_trace_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200), chunks in prop::collection::vec(0..80u32, 0..100), runs in 0..5u32) {
        let manifest = &STORED.manifest;
        prop_assert!(Trace::parse(manifest, &bytes).is_none());
        let json = serde_json::json!({"format": 1, "digest": manifest.digest, "runs": runs, "chunks": chunks});
        let mut once = chunks.clone();
        once.sort_unstable();
        once.dedup();
        let is_sound = once.len() == chunks.len() && once.last().is_none_or(|i| *i < 67) && (1..=3).contains(&runs);
        let parsed = Trace::parse(manifest, &serde_json::to_vec(&json).unwrap());
        prop_assert_eq!(parsed.map(|t| t.chunks().to_vec()), is_sound.then_some(chunks));
    }

    #[test]
    fn what_is_merged_is_sound_again(nodes in prop::collection::vec(prop::collection::vec(0..67u32, 0..60), 0..6)) {
        let manifest = &STORED.manifest;
        let mut trace: Option<Trace> = None;
        for touched in &nodes {
            let Some(merged) = Trace::merged(manifest, trace.clone(), touched) else { continue };
            let json = serde_json::to_vec(&merged).unwrap();
            prop_assert_eq!(Trace::parse(manifest, &json), Some(merged.clone()));
            let before = trace.as_ref().map_or(&[][..], Trace::chunks);
            prop_assert!(merged.chunks().starts_with(before) && merged.chunks().len() > before.len());
            trace = Some(merged);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_make_a_trace_and_a_bad_one_is_none() {
    let objects = Arc::new(InMemory::new());
    let store = Store::over(objects.clone(), Path::default(), QUICK);
    let manifest = &STORED.manifest;
    assert!(store.trace(manifest).await.unwrap().is_none());
    assert!(!store.put_trace(manifest, &[1, 2, 3]).await.unwrap(), "too little");
    assert!(store.put_trace(manifest, &[9, 8, 7, 6, 5, 4, 3, 2]).await.unwrap());
    assert!(!store.put_trace(manifest, &[2, 3, 4, 5, 6, 7, 8, 9, 10]).await.unwrap(), "one more is no news");
    let more = |from: u32| (from..from + 9).collect::<Vec<u32>>();
    assert!(store.put_trace(manifest, &more(20)).await.unwrap());
    assert!(store.put_trace(manifest, &more(40)).await.unwrap());
    assert!(!store.put_trace(manifest, &more(55)).await.unwrap(), "it has an end");
    let trace = store.trace(manifest).await.unwrap().unwrap();
    assert_eq!(trace.chunks()[..10], [9, 8, 7, 6, 5, 4, 3, 2, 20, 21]);
    let name = Path::from(format!("traces/{}.json", &manifest.digest["blake3:".len()..]));
    let long = serde_json::json!({"format": 1, "digest": manifest.digest, "runs": 1, "chunks": vec![0; CHUNKS_MAX + 1]});
    for bad in [b"{".to_vec(), vec![b' '; 1 << 20], long.to_string().into_bytes()] {
        objects.put(&name, bad.into()).await.unwrap();
        assert!(store.trace(manifest).await.unwrap().is_none());
    }
    // And a new one takes its place.
    assert!(store.put_trace(manifest, &more(0)).await.unwrap());
    assert_eq!(store.trace(manifest).await.unwrap().unwrap().chunks().len(), 9);
}
