//! Garbage collection: what is named stays, what is not goes, and a publish beside it loses nothing.

use std::{
    fs::File,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use object_store::{ObjectStoreExt, local::LocalFileSystem};
use storage::{
    Error, Store,
    gc::{Mode, OLDER_THAN_MIN, Swept},
    store::{Ages, Patience},
    table::CHUNK_BYTES,
};

use crate::{
    faulty::Faulty,
    image,
    layer::{self, Made},
    s3,
};

/// A store in a directory, whose calls take a while.
fn store(dir: &Path, settle: Duration) -> (Arc<Faulty>, Store) {
    let faulty = Arc::new(Faulty::over(Arc::new(LocalFileSystem::new_with_prefix(dir).unwrap())));
    let store = Store::over(faulty.clone(), object_store::path::Path::default(), Patience::default());
    (faulty, store.with_ages(Ages { settle, ..Ages::default() }))
}

/// As if all of it had been written two days ago.
fn age(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => age(&path),
            false => {
                let long_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
                File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
            }
        }
    }
}

fn count(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path());
    entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

async fn publish(store: &Store, made: &Made, version: &str) -> Result<(), Error> {
    store.put_layer(&made.layer).await?;
    let digest = format!("blake3:{}", blake3::hash(version.as_bytes()).to_hex());
    let named = api::image::ImageInfo { version: version.into(), digest, ..image(made) };
    store.put_image(&named).await
}

async fn assert_whole(store: &Store, made: &Made) {
    let (manifest, meta) = store.layer(&made.layer.digest).await.unwrap();
    assert!(meta == made.meta);
    let dir = tempfile::tempdir().unwrap();
    store.blob(&manifest, &dir.path().join("b")).await.unwrap();
    assert!(std::fs::read(dir.path().join("b")).unwrap() == made.blob);
}

const QUICK: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_named_stays_and_what_is_not_goes_when_it_is_old() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = store(dir.path(), QUICK);
    let (kept, gone) = (layer::made(40 * CHUNK_BYTES), layer::made(50 * CHUNK_BYTES));
    publish(&store, &kept, "kept").await.unwrap();
    publish(&store, &gone, "gone").await.unwrap();
    let (manifest, _) = store.layer(&gone.layer.digest).await.unwrap();
    let touched: Vec<u32> = (0..20).collect();
    assert!(store.put_trace(&manifest, &touched).await.unwrap());
    store.remove_image("debian:gone").await.unwrap();
    assert!(matches!(store.remove_image("debian:gone").await, Err(Error::Missing(_))));
    std::fs::write(dir.path().join("objects/stranger"), "not ours").unwrap();
    // Two batches and a meta; the same of the other.
    let young = store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_eq!(young, Swept { layers_kept: 2, ..Swept::default() }, "it is young");
    age(dir.path());
    let before = count(dir.path());
    let dry = store.gc(OLDER_THAN_MIN, Mode::DryRun).await.unwrap();
    assert_eq!(count(dir.path()), before);
    let swept = store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_eq!(swept, dry, "a dry run says what would be");
    assert_eq!((swept.layers_kept, swept.layers, swept.objects, swept.traces), (1, 1, 3, 1));
    assert!(swept.bytes > 20 * CHUNK_BYTES as u64 && swept.failed == 0);
    assert_eq!(count(dir.path()), before - 5);
    assert!(dir.path().join("objects/stranger").exists());
    assert_whole(&store, &kept).await;
    assert!(matches!(store.layer(&gone.layer.digest).await, Err(Error::Missing(_))));
    publish(&store, &gone, "gone").await.unwrap();
    assert_whole(&store, &gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_server_is_collected_too() {
    let server = s3::Server::start("layers").await;
    let prefix = object_store::path::Path::from("some/prefix");
    let store = Store::over(server.client("layers"), prefix, Patience::default());
    let store = store.with_ages(Ages { settle: Duration::from_millis(500), ..Ages::default() });
    let (kept, gone) = (layer::made(40 * CHUNK_BYTES), layer::made(50 * CHUNK_BYTES));
    publish(&store, &kept, "kept").await.unwrap();
    publish(&store, &gone, "gone").await.unwrap();
    store.remove_image("debian:gone").await.unwrap();
    let young = store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_eq!(young, Swept { layers_kept: 2, ..Swept::default() });
    age(server.dir.path());
    let swept = store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_eq!((swept.layers_kept, swept.layers, swept.objects, swept.failed), (1, 1, 3, 0));
    assert_whole(&store, &kept).await;
    assert!(matches!(store.layer(&gone.layer.digest).await, Err(Error::Missing(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_means_its_image_until_it_is_removed_by_digest() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = store(dir.path(), QUICK);
    let made = layer::made(CHUNK_BYTES);
    store.put_layer(&made.layer).await.unwrap();
    let named = image(&made);
    store.put_image(&named).await.unwrap();
    store.put_image(&api::image::ImageInfo { name: "other".into(), ..named.clone() }).await.unwrap();
    store.remove_image("debian:12").await.unwrap();
    assert!(store.image(&named.digest).await.unwrap().is_some(), "another name means it");
    assert!(matches!(store.remove_image(&named.digest).await, Err(Error::InUse(_))));
    store.remove_image("other:12").await.unwrap();
    assert!(store.image(&named.digest).await.unwrap().is_none());
    for absent in ["../x", "a/b", "blake3:../../x", "other", &named.digest] {
        assert!(matches!(store.remove_image(absent).await, Err(Error::Missing(_))), "{absent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_ends_a_collection() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = store(dir.path(), QUICK);
    let (kept, loose) = (layer::made(40 * CHUNK_BYTES), layer::made(CHUNK_BYTES));
    publish(&store, &kept, "kept").await.unwrap();
    store.put_layer(&loose.layer).await.unwrap();
    let record = dir.path().join("images/debian/kept.json");
    let manifest = dir.path().join(format!("layers/{}.json", &kept.layer.digest["blake3:".len()..]));
    for damaged in [record, manifest] {
        let sound = std::fs::read(&damaged).unwrap();
        std::fs::write(&damaged, &sound[..sound.len() / 2]).unwrap();
        age(dir.path());
        let objects = count(&dir.path().join("objects"));
        assert!(matches!(store.gc(OLDER_THAN_MIN, Mode::Remove).await, Err(Error::Damaged(_))));
        assert_eq!(count(&dir.path().join("objects")), objects);
        std::fs::write(&damaged, &sound).unwrap();
    }
    // A name whose record is no good can be removed by hand.
    std::fs::write(dir.path().join("images/debian/bad.json"), "{").unwrap();
    store.remove_image("debian:bad").await.unwrap();
    age(dir.path());
    store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_whole(&store, &kept).await;
}

/// Old garbage is published again while it is collected, with pauses in every call that make one overtake the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_beside_a_collection_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (faulty, store) = store(dir.path(), Duration::from_millis(400));
    let store = Arc::new(store);
    let made = layer::made(70 * CHUNK_BYTES);
    for round in 0..8u64 {
        publish(&store, &made, "x").await.unwrap();
        store.remove_image("debian:x").await.unwrap();
        age(dir.path());
        faulty.jitter(round, Duration::from_millis(30));
        let collecting = {
            let store = store.clone();
            tokio::spawn(async move { store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap() })
        };
        // From before it begins to after it has removed the first.
        tokio::time::sleep(Duration::from_millis(round * 12)).await;
        publish(&store, &made, "x").await.unwrap();
        collecting.await.unwrap();
        faulty.jitter(round, Duration::ZERO);
        assert_whole(&store, &made).await;
        store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
        assert_whole(&store, &made).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_used_again_is_young_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = store(dir.path(), QUICK);
    let made = layer::made(40 * CHUNK_BYTES);
    store.put_layer(&made.layer).await.unwrap();
    age(dir.path());
    let sent = store.put_layer(&made.layer).await.unwrap();
    assert_eq!((sent.layers, sent.objects), (0, 0), "its manifest is enough");
    let swept = store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap();
    assert_eq!(swept, Swept { layers_kept: 1, ..Swept::default() });
    // Without its manifest, its objects are loose, and are sent again.
    age(dir.path());
    let name =
        object_store::path::Path::from(format!("layers/{}.json", &made.layer.digest["blake3:".len()..]));
    LocalFileSystem::new_with_prefix(dir.path()).unwrap().delete(&name).await.unwrap();
    assert_eq!(store.put_layer(&made.layer).await.unwrap().objects, 3);
    assert_eq!(store.gc(OLDER_THAN_MIN, Mode::Remove).await.unwrap().objects, 0);
    assert_whole(&store, &made).await;
}
