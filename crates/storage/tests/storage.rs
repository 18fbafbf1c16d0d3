//! The store over a real directory, a real S3 server, and a store that fails as it is told to.
#![allow(clippy::unwrap_used)]

#[path = "storage/faulty.rs"]
mod faulty;
#[path = "storage/gc.rs"]
mod gc;
#[path = "storage/layer.rs"]
mod layer;
#[path = "storage/s3.rs"]
mod s3;
#[path = "storage/trace.rs"]
mod trace;

use std::{sync::Arc, time::Duration};

use api::image::{ImageConfig, ImageInfo, LayerKind};
use faulty::{Faulty, Wrong};
use layer::Made;
use object_store::{memory::InMemory, path::Path};
use storage::{Error, Store, StoreConfig, store::Patience, table::CHUNK_BYTES};

pub const QUICK: Patience = Patience {
    total: Duration::from_millis(2000),
    attempt: Duration::from_millis(150),
    pause: Duration::from_millis(5),
};

pub fn image(made: &Made) -> ImageInfo {
    ImageInfo {
        name: "debian".into(),
        version: "12".into(),
        kind: LayerKind::Base,
        digest: format!("blake3:{}", "ab".repeat(32)),
        layers: vec![made.layer.digest.clone()],
        config: ImageConfig::default(),
        files: 1,
        size_bytes: 1,
        created_ms: 1,
        built_on: None,
        in_use: 3,
        usage: api::image::Usage { sandboxes: 9, last_ms: 9 },
    }
}

/// What every kind of store must do.
async fn round_trip(store: &Store, made: &Made) {
    assert!(store.image("debian:12").await.unwrap().is_none());
    assert!(store.images().await.unwrap().is_empty());
    assert!(matches!(store.layer(&made.layer.digest).await, Err(Error::Missing(_))));
    let sent = store.put_layer(&made.layer).await.unwrap();
    assert_eq!(sent.layers, 1);
    let image = image(made);
    store.put_image(&image).await.unwrap();
    assert_eq!(store.put_layer(&made.layer).await.unwrap(), Default::default(), "nothing is sent twice");

    let found = store.image("debian:12").await.unwrap().unwrap();
    assert_eq!(found, ImageInfo { in_use: 0, usage: Default::default(), ..image.clone() });
    assert_eq!(store.image(&image.digest).await.unwrap().unwrap(), found);
    assert_eq!(store.images().await.unwrap(), [found]);
    for absent in ["debian", "other:12", "../x", "a/b", "blake3:../../x", "debian:"] {
        assert!(store.image(absent).await.unwrap().is_none(), "{absent}");
    }
    let (manifest, meta) = store.layer(&made.layer.digest).await.unwrap();
    assert_eq!(meta, made.meta);
    let dir = tempfile::tempdir().unwrap();
    store.blob(&manifest, &dir.path().join("b")).await.unwrap();
    assert!(std::fs::read(dir.path().join("b")).unwrap() == made.blob);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_keeps_layers_and_images() {
    let (dir, made) = (tempfile::tempdir().unwrap(), layer::made(70 * CHUNK_BYTES + 4096));
    let url = format!("file://{}", dir.path().display());
    let store = Store::open(&StoreConfig::at(url)).unwrap();
    round_trip(&store, &made).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_server_keeps_layers_and_images() {
    let (server, made) = (s3::Server::start("layers").await, layer::made(40 * CHUNK_BYTES));
    let store = Store::over(server.client("layers"), Path::from("some/prefix"), Patience::default());
    round_trip(&store, &made).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_every_size() {
    for size in [0, 4096, CHUNK_BYTES, CHUNK_BYTES + 4096, 32 * CHUNK_BYTES, 33 * CHUNK_BYTES] {
        let store = Store::over(Arc::new(InMemory::new()), Path::default(), QUICK);
        let made = layer::made(size);
        store.put_layer(&made.layer).await.unwrap();
        let (manifest, meta) = store.layer(&made.layer.digest).await.unwrap();
        assert_eq!((meta, manifest.blob_bytes), (made.meta.clone(), size as u64));
        for index in 0..manifest.chunks() {
            let chunk = store.chunks(&manifest, index, 1).await.unwrap().remove(0);
            let start = index * CHUNK_BYTES;
            assert!(chunk.plain[..] == made.blob[start..(start + CHUNK_BYTES).min(size)], "{size} {index}");
        }
    }
}

fn faulty() -> (Arc<Faulty>, Store) {
    let faulty = Arc::new(Faulty::new());
    let store = Store::over(faulty.clone(), Path::default(), QUICK);
    (faulty, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_was_cut_short_goes_on_where_it_was() {
    let (faulty, store) = faulty();
    let made = layer::made(200 * CHUNK_BYTES);
    faulty.puts_allowed(3);
    assert!(store.put_layer(&made.layer).await.is_err());
    assert!(!store.has_layer(&made.layer.digest).await.unwrap(), "no name without its things");
    faulty.puts_allowed(usize::MAX);
    let sent = store.put_layer(&made.layer).await.unwrap();
    // Seven batches and the meta.
    assert_eq!(sent.objects, 8 - 3);
    store.layer(&made.layer.digest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_pass_are_not_seen() {
    let (faulty, store) = faulty();
    let made = layer::made(3 * CHUNK_BYTES);
    store.put_layer(&made.layer).await.unwrap();
    for wrong in [Wrong::Error, Wrong::Slow, Wrong::Cut, Wrong::Flipped, Wrong::Absent, Wrong::Longer] {
        // That there is no manifest is an answer.
        faulty.next(wrong, usize::from(wrong != Wrong::Absent));
        let (manifest, _) = store.layer(&made.layer.digest).await.unwrap();
        faulty.next(wrong, 1);
        let chunks = store.chunks(&manifest, 0, 3).await.unwrap();
        assert!(chunks.iter().flat_map(|c| c.plain.iter()).eq(made.blob.iter()), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_stay_are_told_in_time_and_no_wrong_byte_is_given() {
    let (faulty, store) = faulty();
    let made = layer::made(3 * CHUNK_BYTES);
    store.put_layer(&made.layer).await.unwrap();
    let (manifest, _) = store.layer(&made.layer.digest).await.unwrap();
    for wrong in [Wrong::Error, Wrong::Slow, Wrong::Cut, Wrong::Flipped, Wrong::Absent, Wrong::Longer] {
        faulty.next(wrong, usize::MAX);
        let start = std::time::Instant::now();
        let error = store.chunks(&manifest, 1, 2).await.unwrap_err();
        assert!(start.elapsed() < QUICK.total * 3, "{wrong:?}: {:?}", start.elapsed());
        let fits = match wrong {
            Wrong::Error | Wrong::Slow => matches!(error, Error::Unavailable(_)),
            Wrong::Absent => matches!(error, Error::Missing(_)),
            _ => matches!(error, Error::Damaged(_) | Error::Unavailable(_)),
        };
        assert!(fits, "{wrong:?}: {error}");
        assert!(store.layer(&made.layer.digest).await.is_err(), "{wrong:?}");
        faulty.next(wrong, 0);
        store.chunks(&manifest, 1, 2).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_goes_is_away_and_not_empty() {
    let (dir, made) = (tempfile::tempdir().unwrap(), layer::made(CHUNK_BYTES));
    let (place, aside) = (dir.path().join("store"), dir.path().join("aside"));
    std::fs::create_dir(&place).unwrap();
    let store = Store::open(&StoreConfig::at(format!("file://{}", place.display()))).unwrap();
    store.put_layer(&made.layer).await.unwrap();
    std::fs::rename(&place, &aside).unwrap();
    let back = {
        let (place, aside) = (place.clone(), aside.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            assert!(!place.exists(), "nothing is made where a mount should be");
            std::fs::rename(aside, place).unwrap();
        })
    };
    assert!(store.has_layer(&made.layer.digest).await.unwrap(), "it waits");
    back.await.unwrap();
}
