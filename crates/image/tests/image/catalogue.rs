//! The catalogue on disk: names, sharing, removal, and what a crash leaves.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    sync::Arc,
};

use api::{
    Code,
    image::{ImageConfig, ImageInfo, TagRequest},
};
use image::Catalogue;

use crate::{archive::Tar, *};

fn named(name: &str, version: &str) -> ImportQuery {
    let mut query = ImportQuery::new(name, LayerKind::Base);
    query.version = version.into();
    query
}

fn import(catalogue: &Catalogue, name: &str, version: &str, content: &str) -> ImageInfo {
    catalogue.import_reader(&named(name, version), &Tar::new().file("f", content).bytes()[..]).unwrap()
}

fn count(dir: &Path, part: &str) -> usize {
    fs::read_dir(dir.join(part)).unwrap().count()
}

#[test]
fn an_image_is_found_by_each_of_its_names_and_after_a_restart() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let one = import(&catalogue, "base", "latest", "1");
    let two = import(&catalogue, "base", "v2", "2");
    let same = import(&catalogue, "other", "x", "1");
    assert_eq!((one.digest.as_str(), &one.layers), (same.digest.as_str(), &same.layers));
    assert_ne!(one.digest, two.digest);
    assert_eq!(count(dir.path(), "layers"), 2, "equal layers are shared");
    assert_eq!(count(dir.path(), "tmp"), 0);
    for restarted in [false, true] {
        let catalogue = if restarted { &Catalogue::open(dir.path()).unwrap() } else { &catalogue };
        assert_eq!(catalogue.inspect("base").unwrap(), one);
        assert_eq!(catalogue.inspect("base:v2").unwrap(), two);
        assert_eq!(catalogue.inspect(&two.digest).unwrap(), two);
        assert_eq!(catalogue.list(), [one.clone(), two.clone(), same.clone()]);
        let resolved = catalogue.resolve("base:v2", Some(LayerKind::Base)).unwrap();
        let layer = &resolved.layers[0];
        let mounted = kernel::mount(&layer.meta, layer.blob.as_deref());
        assert_eq!(fs::read_to_string(mounted.path().join("f")).unwrap(), "2");
        assert_eq!(
            catalogue.resolve("base", Some(LayerKind::Toolkit)).unwrap_err().code,
            Code::InvalidArgument
        );
        for missing in ["nope", "base:nope", "blake3:00", "", ":", "../x"] {
            assert_eq!(catalogue.inspect(missing).unwrap_err().code, Code::NotFound, "{missing}");
        }
    }
}

#[test]
fn removal_spares_what_is_used_or_shared() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let one = import(&catalogue, "a", "latest", "1");
    import(&catalogue, "b", "latest", "1");
    let error = catalogue.remove("a", &|digest| digest == one.digest).unwrap_err();
    assert_eq!(error.code, Code::Conflict);
    // A sandbox lives on the layer, and b keeps that.
    catalogue.remove("a", &|layer| layer == one.layers[0]).unwrap();
    let error = catalogue.remove("b", &|layer| layer == one.layers[0]).unwrap_err();
    assert_eq!(error.code, Code::Conflict, "nothing else would keep it");
    assert_eq!(catalogue.remove("a", &|_| false).unwrap_err().code, Code::NotFound);
    assert_eq!(count(dir.path(), "layers"), 1, "b has it still");
    import(&catalogue, "c", "v1", "1");
    catalogue.remove(&one.digest, &|_| false).unwrap();
    assert!(catalogue.list().is_empty(), "by digest: all names go");
    for part in ["layers", "images", "tmp"] {
        assert_eq!(count(dir.path(), part), 0, "{part}");
    }
}

#[test]
fn a_replaced_image_keeps_its_layers_until_a_sweep() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let old = import(&catalogue, "a", "latest", "old");
    let new = import(&catalogue, "a", "latest", "new");
    assert_eq!(catalogue.inspect("a").unwrap(), new);
    assert_eq!(catalogue.sweep(&|layer| layer == old.layers[0]).unwrap(), 0, "a sandbox lives on it");
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 1);
    assert!(catalogue.resolve("a", None).unwrap().layers[0].meta.exists());
}

#[test]
fn a_crash_leaves_nothing_that_counts() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let info = import(&catalogue, "a", "latest", "1");
    import(&catalogue, "b", "latest", "2");
    // Half an import; a layer whose name never came; an image whose layer is damaged.
    fs::create_dir_all(dir.path().join("tmp/half/0")).unwrap();
    fs::write(dir.path().join("tmp/half/0/data.blob"), "half").unwrap();
    fs::create_dir(dir.path().join("layers/0123")).unwrap();
    let hex = info.layers[0].strip_prefix("blake3:").unwrap();
    fs::write(dir.path().join("layers").join(hex).join("data.blob"), "short").unwrap();
    let beside = Catalogue::open(dir.path()).unwrap();
    assert_eq!(count(dir.path(), "tmp"), 1, "another has it open: what is there may be at work");
    drop((beside, catalogue));
    let catalogue = Catalogue::open(dir.path()).unwrap();
    assert_eq!(count(dir.path(), "tmp"), 0);
    assert_eq!(catalogue.list().iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["b"]);
    // The same content again mends the damaged layer.
    let again = import(&catalogue, "a", "latest", "1");
    assert_eq!(again.digest, info.digest);
    let layer = &catalogue.resolve("a", None).unwrap().layers[0];
    assert_eq!(fs::metadata(layer.blob.as_ref().unwrap()).unwrap().len(), 4096);
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 1);
}

#[test]
fn a_process_killed_in_the_middle_leaves_a_whole_catalogue() {
    const ROLE: &str = "DSEC_IMAGE_TEST_VICTIM";
    if let Ok(dir) = std::env::var(ROLE) {
        let catalogue = Catalogue::open(dir.as_ref()).unwrap();
        for round in 0u64.. {
            import(&catalogue, "victim", "latest", &format!("{round}"));
            println!("published {round}");
        }
    }
    let dir = scratch();
    for kill_after in 0..12u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "catalogue::a_process_killed_in_the_middle_leaves_a_whole_catalogue",
                "--nocapture",
            ])
            .env(ROLE, dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Wait until it is at work, then kill it at some moment of it.
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("published")));
        std::thread::sleep(std::time::Duration::from_micros(kill_after * 731));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        assert_eq!(count(dir.path(), "tmp"), 0);
        let resolved = catalogue.resolve("victim", None).unwrap();
        let layer = &resolved.layers[0];
        let mounted = kernel::mount(&layer.meta, layer.blob.as_deref());
        assert!(fs::read_to_string(mounted.path().join("f")).unwrap().parse::<u64>().is_ok());
        catalogue.sweep(&|_| false).unwrap();
        assert_eq!(count(dir.path(), "layers"), 1);
    }
}

#[test]
fn imports_and_removals_at_once() {
    let dir = scratch();
    let catalogue = Arc::new(Catalogue::open(dir.path()).unwrap());
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let catalogue = Arc::clone(&catalogue);
            std::thread::spawn(move || {
                for round in 0..12 {
                    // All share one content, so one's removal meets another's import.
                    import(&catalogue, &format!("w{worker}"), "latest", "shared");
                    let resolved = catalogue.resolve(&format!("w{worker}"), None).unwrap();
                    assert!(resolved.layers[0].meta.exists(), "named, so there");
                    if round % 2 == 0 {
                        catalogue.remove(&format!("w{worker}"), &|_| false).unwrap();
                    }
                    catalogue.sweep(&|_| false).unwrap();
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!((catalogue.list().len(), count(dir.path(), "layers"), count(dir.path(), "tmp")), (4, 1, 0));
}

#[test]
fn a_reader_that_fails_leaves_nothing() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let tar = Tar::new().file("f", &"x".repeat(100_000)).bytes();
    let error = catalogue.import_reader(&query(), tar[..50_000].chain(Broken)).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!((count(dir.path(), "tmp"), count(dir.path(), "layers")), (0, 0));
    let missing = catalogue.import_dir(&query(), Path::new("/nonexistent")).unwrap_err();
    assert_eq!(missing.code, Code::InvalidArgument);
}

#[test]
fn a_tag_is_another_name_and_may_have_another_config() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let image = import(&catalogue, "base", "1", "x");
    let replaced = import(&catalogue, "app", "latest", "replaced");
    let tagged = catalogue.tag("base:1", &TagRequest::new("app")).unwrap();
    assert_eq!((&tagged.digest, &tagged.layers), (&image.digest, &image.layers));
    assert!(catalogue.inspect(&replaced.digest).is_err(), "nothing names it any more");
    let config = ImageConfig { user: Some("me".into()), ..ImageConfig::default() };
    let request = TagRequest { config: Some(config.clone()), ..TagRequest::new("other") };
    let other = catalogue.tag("app", &request).unwrap();
    assert_eq!((&other.layers, &other.config), (&image.layers, &config));
    assert_ne!(other.digest, image.digest);
    // The layers stay with the last of their names.
    for gone in ["base:1", "app"] {
        catalogue.remove(gone, &|_| false).unwrap();
        catalogue.sweep(&|_| false).unwrap();
        assert_eq!(count(dir.path(), "layers"), 1);
    }
    assert_eq!(catalogue.tag("base:1", &request).unwrap_err().code, Code::NotFound);
    catalogue.remove("other", &|_| false).unwrap();
    assert_eq!((count(dir.path(), "layers"), count(dir.path(), "tmp")), (0, 0));
}
