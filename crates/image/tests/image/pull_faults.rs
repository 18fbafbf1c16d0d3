//! Pulls that fail: each with its code, none leaving anything, and a registry that is out to do harm doing none.

use std::time::{Duration, Instant};

use api::{
    Code,
    error::Class,
    pull::{PullProgress, PullRequest},
};
use axum::http::StatusCode;
use image::Catalogue;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    archive::Tar,
    oci::{Layout, sha256},
    pull::{assert_clean, base, large, pull, request},
    registry::Registry,
    *,
};

/// A catalogue with one image, and a registry.
struct World {
    dir: tempfile::TempDir,
    catalogue: Catalogue,
    registry: Registry,
}

impl World {
    fn new() -> Self {
        let dir = scratch();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let tar = Tar::new().file("f", "before").bytes();
        catalogue.import_reader(&ImportQuery::new("pulled", LayerKind::Base), &tar[..]).unwrap();
        Self { dir, catalogue, registry: Registry::start() }
    }

    /// The error; whatever it is, the catalogue is as it was.
    fn fails(&self, tag: &str) -> api::Error {
        let wish = PullRequest { version: Some("latest".into()), ..request(&self.registry, tag) };
        let before = self.catalogue.list();
        let error = pull(&self.catalogue, &wish).unwrap_err();
        assert_eq!(self.catalogue.list(), before);
        assert_eq!(self.catalogue.sweep(&|_| false).unwrap(), 0, "{error}");
        assert_clean(self.dir.path());
        assert!(error.message.len() < 500, "{error}");
        error
    }

    fn refused(&self, tag: &str, words: &str) {
        let error = self.fails(tag);
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn what_is_not_there_is_not_found() {
    let world = World::new();
    assert_eq!(world.fails(":nope").code, Code::NotFound);
    let (mut layout, _) = large();
    layout.blobs.retain(|_, bytes| bytes.len() < 10_000);
    world.registry.push(&layout, "1");
    assert_eq!(world.fails(":1").code, Code::NotFound, "a layer is missing");
}

#[test]
fn a_layer_that_is_another_is_refused() {
    let world = World::new();
    let (mut layout, size) = large();
    let layer = layout.blobs.values_mut().find(|bytes| bytes.len() as u64 == size).unwrap();
    layer[1000] ^= 1;
    world.registry.push(&layout, "1");
    world.refused(":1", "as promised");
    let layer = layout.blobs.values_mut().find(|bytes| bytes.len() as u64 == size).unwrap();
    layer.push(0);
    world.registry.push(&layout, "2");
    world.refused(":2", "not 4"); // its size: 401408 or so
    layout.blobs.values_mut().for_each(|bytes| bytes.truncate(20_000));
    world.registry.inner.blobs.lock().unwrap().clear();
    world.registry.push(&large().0, "3");
    world.registry.inner.blobs.lock().unwrap().extend(layout.blobs);
    world.refused(":3", "20000 bytes");
}

#[test]
fn a_layer_that_ends_early_again_and_again_is_unreachable() {
    let world = World::new();
    world.registry.push(&large().0, "1");
    world.registry.manners().ends_after = Some(0);
    let error = world.fails(":1");
    assert!(error.code == Code::Unreachable && error.code.class() == Class::Busy, "{error}");
    assert!(world.registry.blobs_asked().len() == 7, "the config, and six tries");
    // Without its length, and longer than promised.
    let (mut layout, size) = large();
    layout.blobs.values_mut().filter(|b| b.len() as u64 == size).for_each(|bytes| bytes.push(1));
    world.registry.push(&layout, "2");
    world.registry.manners().ends_after = Some(usize::MAX);
    world.refused(":2", "larger than");
}

#[test]
fn a_registry_that_is_not_there_is_unreachable() {
    let world = World::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wish = PullRequest::new(format!("{nobody}/team/app"));
    let error = pull(&world.catalogue, &wish).unwrap_err();
    assert!(error.code == Code::Unreachable && error.retry_after_ms.is_some(), "{error}");
    world.registry.manners().refusals = vec![(StatusCode::INTERNAL_SERVER_ERROR, None); 6].into();
    assert_eq!(world.fails(":1").code, Code::Unreachable);
    assert_eq!(world.fails(":1").code, Code::NotFound, "six tries, no more");
}

#[test]
fn patience_is_as_long_as_the_registry_asks_but_not_longer_than_ours() {
    let world = World::new();
    let many = StatusCode::TOO_MANY_REQUESTS;
    world.registry.push(&Layout::new(base()), "1");
    world.registry.manners().refusals = [(many, Some("2"))].into();
    let started = Instant::now();
    pull(&world.catalogue, &request(&world.registry, ":1")).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(2));
    world.registry.manners().refusals = [(many, Some("3600"))].into();
    let started = Instant::now();
    let error = pull(&world.catalogue, &request(&world.registry, ":1")).unwrap_err();
    assert_eq!((error.code, error.retry_after_ms), (Code::RateLimited, Some(3_600_000)), "{error}");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_manifest_that_is_another_is_refused() {
    let world = World::new();
    let digest = world.registry.json("1", &json!({"schemaVersion": 2}));
    world.registry.inner.manifests.lock().unwrap().insert(digest.clone(), b"{}".to_vec());
    let wish = PullRequest { version: Some("1".into()), ..request(&world.registry, &format!("@{digest}")) };
    let error = pull(&world.catalogue, &wish).unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("as promised"), "{error}");
}

#[test]
fn hostile_manifests() {
    let world = World::new();
    let registry = &world.registry;
    registry.manifest("huge", vec![b' '; 9 << 20]);
    world.refused(":huge", "larger than");
    registry.manifest("nonsense", b"\x00\xff{".to_vec());
    world.refused(":nonsense", "the manifest");
    registry.manifest("deep", [b"{\"manifests\":".as_slice(), &b"[".repeat(100_000)].concat());
    world.refused(":deep", "the manifest");
    // An index cannot name itself by digest, but indexes can go on and on.
    let mut digest = format!("sha256:{}", "0".repeat(64));
    for _ in 0..8 {
        digest = registry.json("chain", &json!({"manifests": [{"digest": digest, "size": 1}]}));
    }
    world.refused(":chain", "indexes");
    registry.json("empty", &json!({"manifests": []}));
    world.refused(":empty", "without images");
    let config = registry.blob(b"{}");
    let layer = registry.blob(&Tar::new().file("f", "x").bytes());
    let manifest =
        |layers: serde_json::Value| json!({"schemaVersion": 2, "config": config, "layers": layers});
    registry.json("many", &manifest(vec![layer.clone(); 10_000].into()));
    world.refused(":many", "squash it");
    for (tag, digest) in
        [("up", "sha256:../../../../etc/passwd"), ("short", "sha256:00"), ("other", "md5:00")]
    {
        registry.json(tag, &manifest(json!([{"digest": digest, "size": 1}])));
        world.refused(&format!(":{tag}"), "not a sha256 digest");
    }
    registry.json("sizes", &manifest(json!([{"digest": layer["digest"], "size": u64::MAX}, layer])));
    world.refused(":sizes", "larger than");
    registry.json("negative", &manifest(json!([{"digest": layer["digest"], "size": -1}])));
    world.refused(":negative", "the manifest");
    registry.json("sizeless", &manifest(json!([{"digest": layer["digest"]}])));
    world.refused(":sizeless", "without its size");
    registry.json("first", &json!({"schemaVersion": 1, "fsLayers": []}));
    assert_eq!(world.fails(":first").code, Code::Unsupported);
}

#[test]
fn hostile_configs_and_layers() {
    let world = World::new();
    let registry = &world.registry;
    let tar = Tar::new().file("f", "x").bytes();
    let push = |tag: &str, config: &serde_json::Value, layers: &[serde_json::Value]| {
        let config = registry.blob(&serde_json::to_vec(config).unwrap());
        registry.json(tag, &json!({"schemaVersion": 2, "config": config, "layers": layers}));
    };
    let diff = |bytes: &[u8]| json!({"rootfs": {"diff_ids": [format!("sha256:{}", sha256(bytes))]}});
    push("diff", &diff(b"other"), &[registry.blob(&tar)]);
    world.refused(":diff", "as promised");
    push("count", &diff(&tar), &[registry.blob(&tar), registry.blob(&tar)]);
    world.refused(":count", "another number of layers");
    // Packed, and its diff id is that of the packed bytes.
    let packed = zstd::encode_all(&tar[..], 1).unwrap();
    push("packed", &diff(&packed), &[registry.blob(&packed)]);
    world.refused(":packed", "as promised");
    let climbing = Tar::new().file("../../etc/passwd", "x").bytes();
    push("climbing", &diff(&climbing), &[registry.blob(&climbing)]);
    world.refused(":climbing", "`..`");
    let cut = &tar[..700];
    push("cut", &diff(cut), &[registry.blob(cut)]);
    world.refused(":cut", "truncated");
    push("none", &json!({}), &[registry.blob(b"no tar")]);
    world.fails(":none");
    // A config that claims to be larger than any.
    registry.json("config", &json!({"config": {"digest": format!("sha256:{}", "0".repeat(64)), "size": 1u64 << 40}, "layers": []}));
    world.refused(":config", "larger than");
    let chart = json!({"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    registry.json("chart", &json!({"schemaVersion": 2, "config": chart, "layers": []}));
    world.refused(":chart", "no image");
}

#[test]
fn a_bomb_is_bounded() {
    let dir = scratch();
    let limits = image::Limits { bytes_max: 1 << 20, ..image::Limits::default() };
    let catalogue = Catalogue::open_with(dir.path(), limits).unwrap();
    let bomb = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 1 << 28), 1).unwrap();
    let registry = Registry::start();
    let config = registry.blob(b"{}");
    let layer = registry.blob(&bomb);
    registry.json("bomb", &json!({"schemaVersion": 2, "config": config, "layers": [layer]}));
    let error = pull(&catalogue, &request(&registry, ":bomb")).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert_clean(dir.path());
}

#[test]
fn redirects_end_and_keep_to_this_machine() {
    let world = World::new();
    world.registry.push(&large().0, "1");
    // In a circle: the path of the storage is one that redirects to itself.
    world.registry.manners().redirect = Some("http://storage.example.org".into());
    assert_eq!(world.fails(":1").code, Code::PermissionDenied);
    world.registry.manners().redirect = Some("ftp://storage.example.org".into());
    world.refused(":1", "URL that is none");
}

#[test]
fn a_pull_that_nobody_waits_for_ends() {
    let world = World::new();
    world.registry.push(&large().0, "1");
    world.registry.manners().pause = Some(Duration::from_secs(1));
    let (progress, listens) = watch::channel(PullProgress::default());
    let started = Instant::now();
    let wish = request(&world.registry, ":1");
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| world.catalogue.pull(&wish, &progress));
        std::thread::sleep(Duration::from_millis(2500));
        drop(listens);
        pulling.join().unwrap().unwrap_err();
    });
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_clean(world.dir.path());
    world.registry.manners().pause = None;
    pull(&world.catalogue, &request(&world.registry, ":1")).unwrap();
}
