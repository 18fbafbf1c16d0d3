//! Pulls that go well: equal to imports, authenticated, redirected, resumed, and never fetching what is here.

use std::{fs, time::Duration};

use api::{
    Code,
    image::{ImageInfo, ImportFormat},
    pull::{Credentials, PullProgress, PullRequest, Secret},
};
use image::Catalogue;
use tokio::sync::watch;

use crate::{archive::Tar, oci::Layout, registry::Registry, *};

pub fn pull(catalogue: &Catalogue, request: &PullRequest) -> Result<ImageInfo, api::Error> {
    let (progress, _listens) = watch::channel(PullProgress::default());
    catalogue.pull(request, &progress)
}

pub fn request(registry: &Registry, tag: &str) -> PullRequest {
    PullRequest { name: Some("pulled".into()), ..PullRequest::new(registry.reference(tag)) }
}

/// What no pull may leave behind.
pub fn assert_clean(dir: &Path) {
    for part in ["tmp", "blobs"] {
        let left: Vec<_> = fs::read_dir(dir.join(part)).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Bytes that do not pack, so that their layers are large.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut hash = blake3::Hasher::new();
    hash.update(&seed.to_le_bytes());
    let mut out = vec![0; bytes];
    hash.finalize_xof().fill(&mut out);
    out
}

fn file(tar: Tar, name: &str, data: &[u8]) -> Tar {
    tar.entry(tar::EntryType::Regular, name, "", data)
}

/// A base of two layers.
pub fn base() -> Vec<Vec<u8>> {
    let lower =
        Tar::new().dir("./").dir("etc/").dir("usr/").dir("usr/lib/").symlink("lib", "usr/lib").dir("data/");
    let lower = file(lower, "data/large", &noise(300_000, 1)).file("etc/gone", "1").file("usr/lib/a", "a");
    let upper =
        file(Tar::new(), "data/more", &noise(200_000, 2)).file("etc/.wh.gone", "").file("etc/kept", "2");
    vec![lower.bytes(), upper.bytes()]
}

/// A layer whose bytes depend on those below: an undescribed parent, a path through a symlink.
fn upper() -> Vec<u8> {
    file(Tar::new(), "lib/b", &noise(100_000, 3)).file("data/x/y", "z").file("usr/lib/.wh.a", "").bytes()
}

fn imported(layout: &Layout) -> ImageInfo {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let query = ImportQuery { format: ImportFormat::OciArchive, ..query() };
    catalogue.import_reader(&query, &layout.bytes()[..]).unwrap()
}

#[test]
fn a_pull_and_an_import_make_the_same_image() {
    let layout = Layout::new([base(), vec![upper()]].concat());
    let registry = Registry::with(&layout, "1.2");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let (progress, told) = watch::channel(PullProgress::default());
    let info = catalogue.pull(&PullRequest::new(registry.reference(":1.2")), &progress).unwrap();
    let expected = imported(&layout);
    assert_eq!((info.digest, info.layers), (expected.digest, expected.layers));
    assert_eq!((info.name.as_str(), info.version.as_str()), ("app", "1.2"));
    assert_eq!(info.config, expected.config);
    let told = told.borrow().clone();
    assert_eq!((told.layers_total, told.layers_reused, told.layers_done), (3, 0, 3));
    assert!(told.bytes_total > 500_000 && told.bytes_fetched == told.bytes_total, "{told:?}");
    let digest = layout.index["manifests"][0]["digest"].as_str().unwrap();
    assert_eq!(told.manifest, digest);
    assert_clean(dir.path());
    // By digest, and under another name: nothing comes twice.
    registry.take();
    let again = PullRequest {
        name: Some("other".into()),
        ..PullRequest::new(registry.reference(&format!("@{digest}")))
    };
    assert_eq!(pull(&catalogue, &again).unwrap().version, &digest[7..19]);
    assert_eq!(registry.blobs_asked().len(), 1, "the config alone");
}

#[test]
fn what_two_images_share_is_fetched_once() {
    let (one, two) = (Layout::new(base()), Layout::new([base(), vec![upper()]].concat()));
    let registry = Registry::with(&one, "one");
    registry.push(&two, "two");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let first = pull(&catalogue, &request(&registry, ":one")).unwrap();
    assert!(registry.take().1 > 500_000);
    for restarted in [false, true] {
        drop(fs::read_dir(dir.path()));
        let catalogue = if restarted { &Catalogue::open(dir.path()).unwrap() } else { &catalogue };
        let wish = PullRequest { version: Some(format!("two-{restarted}")), ..request(&registry, ":two") };
        let second = pull(catalogue, &wish).unwrap();
        let expected = imported(&two);
        assert_eq!(
            (&second.digest, &second.layers),
            (&expected.digest, &expected.layers),
            "made over known layers"
        );
        assert_eq!(second.layers[..2], first.layers);
        let (asked, bytes) = registry.take();
        let blobs = asked.iter().filter(|asked| asked.path.contains("/blobs/")).count();
        let expected = if restarted { 1 } else { 2 };
        assert_eq!(blobs, expected, "the config, and once the new layer: {asked:?}");
        assert!(bytes < 150_000, "{bytes}");
    }
    assert_clean(dir.path());
}

#[test]
fn a_known_layer_that_hides_all_below_still_does() {
    let opaque = file(Tar::new(), ".wh..wh..opq", b"").dir("./").dir("lib/").file("lib/own", "1").bytes();
    let lower = [base(), vec![opaque]].concat();
    let (one, two) = (Layout::new(lower.clone()), Layout::new([lower, vec![upper()]].concat()));
    let registry = Registry::with(&one, "one");
    registry.push(&two, "two");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    assert_eq!(pull(&catalogue, &request(&registry, ":one")).unwrap().layers.len(), 1);
    let info = pull(&catalogue, &request(&registry, ":two")).unwrap();
    let expected = imported(&two);
    assert_eq!(
        (info.digest, info.layers),
        (expected.digest, expected.layers),
        "`lib` is no symlink any more"
    );
}

#[test]
fn an_import_brings_what_a_pull_needs() {
    let (one, two) = (Layout::new(base()), Layout::new([base(), vec![upper()]].concat()));
    let registry = Registry::with(&two, "two");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.import_reader(&query(), &one.bytes()[..]).unwrap();
    let info = pull(&catalogue, &request(&registry, ":two")).unwrap();
    assert_eq!(info.digest, imported(&two).digest);
    assert_eq!(registry.blobs_asked().len(), 2);
    // Under a prefix the same layers are others.
    let prefixed =
        ImportQuery { prefix: Some("/opt".into()), ..ImportQuery::new("prefixed", LayerKind::Toolkit) };
    let prefixed = catalogue.import_reader(&prefixed, &two.bytes()[..]).unwrap();
    assert!(prefixed.layers.iter().all(|layer| !info.layers.contains(layer)));
}

#[test]
fn removed_layers_are_forgotten_and_fetched_again() {
    let layout = Layout::new(base());
    let registry = Registry::with(&layout, "1");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let info = pull(&catalogue, &request(&registry, ":1")).unwrap();
    registry.take();
    let count = |part: &str| fs::read_dir(dir.path().join(part)).unwrap().count();
    assert_eq!((count("known"), count("layers")), (2, 2));
    catalogue.remove("pulled:1", &|_| false).unwrap();
    assert_eq!((count("known"), count("layers")), (0, 0));
    assert_eq!(pull(&catalogue, &request(&registry, ":1")).unwrap().digest, info.digest);
    assert_eq!(registry.blobs_asked().len(), 3);
    // Replaced by another image, swept, and a record whose layer is gone behind our back.
    catalogue
        .import_reader(
            &ImportQuery { version: "1".into(), ..ImportQuery::new("pulled", LayerKind::Base) },
            &Tar::new().file("a", "b").bytes()[..],
        )
        .unwrap();
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 2);
    assert_eq!(count("known"), 0);
    pull(&catalogue, &request(&registry, ":1")).unwrap();
    for record in fs::read_dir(dir.path().join("known")).unwrap() {
        let path = record.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    registry.take();
    pull(&catalogue, &request(&registry, ":1")).unwrap();
    assert_eq!(registry.blobs_asked().len(), 3, "a damaged record is none");
}

#[test]
fn who_asks_for_a_token_gets_one_and_credentials_go_nowhere_else() {
    let layout = Layout::new(base());
    let storage = Registry::with(&layout, "unused");
    let registry = Registry::with(&layout, "1");
    {
        let mut manners = registry.manners();
        manners.bearer = true;
        manners.credentials = Some(("user", "pass word"));
        manners.redirect = Some(format!("http://{}", storage.address));
    }
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let error = pull(&catalogue, &request(&registry, ":1")).unwrap_err();
    assert_eq!(error.code, Code::Unauthenticated, "{error}");
    let with = |password: &str| {
        let credentials = Credentials { username: "user".into(), password: Secret(password.into()) };
        PullRequest { credentials: Some(credentials), ..request(&registry, ":1") }
    };
    let error = pull(&catalogue, &with("wrong")).unwrap_err();
    assert_eq!(error.code, Code::Unauthenticated, "{error}");
    registry.take();
    pull(&catalogue, &with("pass word")).unwrap();
    let (asked, _) = registry.take();
    let token: Vec<_> = asked.iter().filter(|asked| asked.path.starts_with("/token")).collect();
    assert_eq!(token[0].path, "/token?a=b&service=a%20registry&scope=repository%3Ateam%2Fapp%3Apull");
    assert_eq!(token.len(), 1, "one token serves the whole pull");
    let (stored, bytes) = storage.take();
    assert!(stored.len() == 3 && bytes > 500_000, "{stored:?}");
    assert!(stored.iter().all(|asked| asked.authorization.is_none()), "{stored:?}");
    assert!(stored.iter().all(|asked| asked.path.ends_with("?signature=x%2Fy")), "{stored:?}");
    *registry.manners() =
        crate::registry::Manners { basic: true, credentials: Some(("user", "p")), ..Default::default() };
    pull(&catalogue, &with("p")).unwrap();
    assert_eq!(pull(&catalogue, &with("q")).unwrap_err().code, Code::Unauthenticated);
    assert_eq!(pull(&catalogue, &request(&registry, ":1")).unwrap_err().code, Code::Unauthenticated);
}

/// An image of one large layer, and that layer's size.
pub fn large() -> (Layout, u64) {
    let layout = Layout::new(vec![file(Tar::new(), "large", &noise(400_000, 9)).bytes()]);
    let size = layout.blobs.values().map(Vec::len).max().unwrap() as u64;
    (layout, size)
}

#[test]
fn a_broken_blob_goes_on_from_its_last_byte() {
    let (layout, size) = large();
    let registry = Registry::with(&layout, "1");
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let ranges = |asked: &[crate::registry::Asked]| -> Vec<_> {
        asked.iter().filter(|a| a.path.contains("/blobs/")).skip(1).map(|a| a.range.clone()).collect()
    };
    registry.manners().breaks = [150_000, 0, 100_000].into();
    let info = pull(&catalogue, &request(&registry, ":1")).unwrap();
    let (asked, bytes) = registry.take();
    let range = |from: &str| Some(format!("bytes={from}-"));
    assert_eq!(ranges(&asked), [None, range("150000"), range("150000"), range("250000")]);
    assert!((size..size + 2_000).contains(&bytes), "{bytes} of {size}: the config is small");
    catalogue.remove("pulled:1", &|_| false).unwrap();
    // A registry that knows no ranges gives it again from its beginning.
    registry.manners().no_range = true;
    registry.manners().breaks = [150_000].into();
    assert_eq!(pull(&catalogue, &request(&registry, ":1")).unwrap().digest, info.digest);
    let (asked, bytes) = registry.take();
    assert_eq!(ranges(&asked), [None, range("150000")]);
    assert!(bytes > size + 150_000, "{bytes}");
    assert_clean(dir.path());
}

#[test]
fn a_pull_that_was_killed_goes_on_from_its_blobs() {
    let layout = Layout::new(base());
    let registry = Registry::with(&layout, "1");
    let dir = scratch();
    let hex = |asked: &crate::registry::Asked| asked.path.rsplit(':').next().unwrap().to_owned();
    drop(Catalogue::open(dir.path()).unwrap());
    // What a kill leaves: whole blobs, one of them damaged by a loss of power, and a part of another.
    let layers: Vec<_> = layout.blobs.iter().filter(|(_, bytes)| bytes.len() > 100_000).collect();
    let (whole, damaged) = (layers[0], layers[1]);
    fs::write(dir.path().join("blobs").join(whole.0), whole.1).unwrap();
    fs::write(dir.path().join("blobs").join(damaged.0), vec![0; damaged.1.len()]).unwrap();
    fs::create_dir(dir.path().join("tmp/dead")).unwrap();
    fs::write(dir.path().join("tmp/dead/x.part"), "part").unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    pull(&catalogue, &request(&registry, ":1")).unwrap();
    let asked = registry.blobs_asked();
    assert_eq!(asked.len(), 2, "the config, and the layer that was not whole");
    assert_eq!(&hex(&asked[1]), damaged.0);
    assert_clean(dir.path());
    // One that nobody comes back for goes after a day.
    let (old, new) = (dir.path().join("blobs/old"), dir.path().join("blobs/new"));
    for path in [&old, &new] {
        fs::write(path, "x").unwrap();
    }
    let day = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    fs::File::options().write(true).open(&old).unwrap().set_modified(day).unwrap();
    catalogue.sweep(&|_| false).unwrap();
    assert!(!old.exists() && new.exists());
}

#[test]
fn the_same_image_is_pulled_once_at_a_time() {
    let (layout, size) = large();
    let registry = Registry::with(&layout, "1");
    registry.manners().pause = Some(Duration::from_millis(20));
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4)
            .map(|n| {
                let wish = PullRequest { name: Some(format!("n{n}")), ..request(&registry, ":1") };
                let catalogue = &catalogue;
                scope.spawn(move || pull(catalogue, &wish).unwrap().digest)
            })
            .collect();
        let digests: std::collections::BTreeSet<_> = pulls.into_iter().map(|p| p.join().unwrap()).collect();
        assert_eq!(digests.len(), 1);
    });
    assert!(registry.take().1 < size + 10_000);
    assert_clean(dir.path());
}

#[test]
fn an_index_leads_to_the_platform() {
    let registry = Registry::start();
    let (amd64, arm64) = (Layout::new(base()), Layout::new(vec![upper()]));
    registry.push(&amd64, "amd64");
    registry.push(&arm64, "arm64");
    let entry = |layout: &Layout, os: &str, architecture: &str| {
        let mut entry = layout.index["manifests"][0].clone();
        entry["platform"] = serde_json::json!({"os": os, "architecture": architecture});
        entry
    };
    let node = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let attestation = serde_json::json!({"digest": format!("sha256:{}", "0".repeat(64)), "size": 3,
        "platform": {"os": "unknown", "architecture": "unknown"}});
    let index = |manifests| serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    registry.json(
        "both",
        &index(vec![attestation, entry(&arm64, "linux", "s390x"), entry(&amd64, "linux", node)]),
    );
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let info = pull(&catalogue, &request(&registry, ":both")).unwrap();
    assert_eq!(info.digest, imported(&amd64).digest);
    let for_other = PullRequest { platform: Some("linux/riscv64".into()), ..request(&registry, ":both") };
    let error = pull(&catalogue, &for_other).unwrap_err();
    assert!(error.code == Code::NotFound && error.message.contains("linux/s390x"), "{error}");
    // The config has the last word: it says amd64, whatever the index says.
    let wrong = PullRequest { platform: Some("linux/s390x".into()), ..request(&registry, ":both") };
    assert_eq!(pull(&catalogue, &wrong).unwrap_err().code, Code::NotFound);
}
