//! Exports: imported again, extracted by GNU tar, and read by skopeo.

use std::{
    fs,
    io::{self, Write},
    process::Stdio,
};

use api::{
    Code,
    image::{ExportFormat, ImageInfo},
};
use image::Catalogue;
use proptest::prelude::*;

use crate::{archive::Tar, *};

const FORMATS: [ExportFormat; 3] = [ExportFormat::Oci, ExportFormat::Docker, ExportFormat::Tar];

fn export(catalogue: &Catalogue, reference: &str, format: ExportFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    catalogue.export(reference, format).unwrap().write(&mut bytes).unwrap();
    bytes
}

fn import_as(catalogue: &Catalogue, name: &str, bytes: &[u8]) -> ImageInfo {
    catalogue.import_reader(&ImportQuery::new(name, LayerKind::Base), bytes).unwrap()
}

fn mounted(catalogue: &Catalogue, reference: &str) -> kernel::Mounted {
    let image = catalogue.resolve(reference, None).unwrap();
    let [layer] = &image.layers[..] else { panic!("{} layers", image.layers.len()) };
    kernel::mount(&layer.meta, layer.blob.as_deref())
}

/// Extracted by GNU tar, with all that it can set.
fn extracted(bytes: &[u8], to: &Path) -> snapshot::Snapshot {
    fs::create_dir(to).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--file=-", "--numeric-owner", "--same-owner", "--preserve-permissions"]);
    tar.args(["--xattrs", "--xattrs-include=*", "-C"]).arg(to);
    let mut tar = tar.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = tar.wait_with_output().unwrap();
    assert!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    snapshot::take(to)
}

#[test]
fn an_oci_export_imported_again_has_the_same_layers() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let image = import_as(&catalogue, "image", &oci::Layout::new(oci::layers()).bytes());
    assert_eq!(image.layers.len(), 3);
    assert_eq!(image.config.labels, [("org.example.one".to_owned(), "1".to_owned())].into());
    let ports = ["53/udp", "8080/tcp", "99/tcp"].map(str::to_owned);
    assert_eq!(image.config.exposed_ports, ports.into());
    for format in [ExportFormat::Oci, ExportFormat::Docker] {
        let bytes = export(&catalogue, "image", format);
        assert!(bytes == export(&catalogue, "image", format), "{format:?}: the same bytes each time");
        let again = import_as(&catalogue, "again", &bytes);
        assert_eq!(
            (&again.layers, &again.config, &again.digest),
            (&image.layers, &image.config, &image.digest)
        );
    }
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn what_gnu_tar_extracts_is_what_is_mounted() {
    let dir = scratch();
    let catalogue = Catalogue::open(&dir.path().join("catalogue")).unwrap();
    let source = dir.path().join("source");
    synthetic::build(&source);
    // What a union never shows.
    fs::remove_file(source.join("whiteout")).unwrap();
    xattr::remove(source.join("empty-dir"), "trusted.overlay.opaque").unwrap();
    // The modification time of a directory is that of its last change, but for what is set.
    let image = catalogue.import_dir(&ImportQuery::new("image", LayerKind::Base), &source).unwrap();
    let bytes = export(&catalogue, "image", ExportFormat::Tar);
    let shown = snapshot::take(&mounted(&catalogue, "image").path());
    snapshot::assert_equal(&shown, &extracted(&bytes, &dir.path().join("extracted")));
    // Imported again, by each form, it is the same tree.
    for format in FORMATS {
        let again = import_as(&catalogue, "again", &export(&catalogue, "image", format));
        snapshot::assert_equal(&shown, &snapshot::take(&mounted(&catalogue, "again").path()));
        assert!(format == ExportFormat::Tar || again.layers == image.layers, "{format:?}");
    }
}

#[test]
fn a_tar_export_is_the_union_of_the_layers() {
    let dir = scratch();
    let catalogue = Catalogue::open(&dir.path().join("catalogue")).unwrap();
    import_as(&catalogue, "image", &oci::Layout::new(oci::layers()).bytes());
    let image = catalogue.resolve("image", None).unwrap();
    let mounts: Vec<_> = image.layers.iter().map(|l| kernel::mount(&l.meta, l.blob.as_deref())).collect();
    let overlay = kernel::overlay(&mounts);
    let plain = |mut names: snapshot::Snapshot| {
        for facts in names.values_mut() {
            // overlayfs counts links in its own way, and a symlink cannot be made with a mode.
            facts.links = 0;
            facts.mode |= if facts.target.is_some() { 0o777 } else { 0 };
        }
        names
    };
    let bytes = export(&catalogue, "image", ExportFormat::Tar);
    let found = extracted(&bytes, &dir.path().join("extracted"));
    snapshot::assert_equal(&plain(snapshot::take(&overlay.path())), &plain(found));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// In whatever order an archive has its files, equal ones among them.
    #[test]
    fn random_layers_come_back_the_same(
        lower in proptest::collection::vec(random::plan(), 0..50),
        upper in proptest::collection::vec(random::plan(), 0..50),
    ) {
        let dir = scratch();
        let mut layers = Vec::new();
        for (number, plans) in [lower, upper].iter().enumerate() {
            let source = dir.path().join(number.to_string());
            random::build(&source, plans);
            layers.push(gnu_tar(&source, &["--format=posix"]));
        }
        let catalogue = Catalogue::open(&dir.path().join("catalogue")).unwrap();
        let image = import_as(&catalogue, "image", &oci::Layout::new(layers).bytes());
        let again = import_as(&catalogue, "again", &export(&catalogue, "image", ExportFormat::Oci));
        prop_assert_eq!(again.layers, image.layers);
        let merged = import_as(&catalogue, "flat", &export(&catalogue, "image", ExportFormat::Tar));
        let flat = import_as(&catalogue, "flat", &export(&catalogue, "flat", ExportFormat::Tar));
        prop_assert_eq!(flat.digest, merged.digest);
    }
}

/// Files that share their last chunk: who brought it must come first, whatever the names.
#[test]
fn files_that_repeat_parts_of_others_come_back_the_same() {
    let chunk = |text: &str| text.repeat(262_144 / text.len());
    let [a, b, c] = ["aaaaaaa0", "bbbbbbb0", "ccccccc0"].map(chunk);
    let orders = [
        // The last of one alone; two from others; all in another order.
        vec![("z", [&a[..], &b].concat()), ("y", b.clone()), ("x", [&b[..], &a].concat())],
        vec![
            ("z", a.clone()),
            ("y", [&a[..], &b, &c].concat()),
            ("x", [&a[..], &c].concat()),
            ("w", [&c[..], &b, &c].concat()),
        ],
        vec![
            ("z", [&a[..], &b, &a].concat()),
            ("y", [&c[..], &b].concat()),
            ("x", [&b[..], &c].concat()),
            ("w", "tail".into()),
        ],
    ];
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    for files in orders {
        let tar = files.iter().fold(Tar::new(), |tar, (name, data)| tar.file(name, data));
        let image = import_as(&catalogue, "image", &tar.bytes());
        let again = import_as(&catalogue, "again", &export(&catalogue, "image", ExportFormat::Oci));
        assert_eq!(
            again.layers,
            image.layers,
            "{:?}",
            files.iter().map(|(name, _)| name).collect::<Vec<_>>()
        );
    }
}

#[test]
fn skopeo_takes_it() {
    if !has("skopeo", "skopeo") {
        return;
    }
    let dir = scratch();
    let catalogue = Catalogue::open(&dir.path().join("catalogue")).unwrap();
    import_as(&catalogue, "Image", &oci::Layout::new(oci::layers()).bytes());
    let skopeo = |arguments: &[&str]| {
        // Its own scratch files go with the test.
        let output = Command::new("skopeo").arg("--tmpdir").arg(dir.path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "skopeo: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    for (format, transport) in [(ExportFormat::Oci, "oci-archive"), (ExportFormat::Docker, "docker-archive")]
    {
        let archive = dir.path().join(transport);
        fs::write(&archive, export(&catalogue, "Image", format)).unwrap();
        let source = format!("{transport}:{}", archive.display());
        let told: serde_json::Value = serde_json::from_slice(&skopeo(&["inspect", &source])).unwrap();
        assert_eq!((&told["Os"], told["Layers"].as_array().unwrap().len()), (&"linux".into(), 3), "{told}");
        assert!(told["Env"].as_array().unwrap().contains(&"EQ=a=b".into()), "{told}");
        let config: serde_json::Value =
            serde_json::from_slice(&skopeo(&["inspect", "--config", &source])).unwrap();
        assert_eq!(
            (&config["config"]["WorkingDir"], &config["config"]["User"]),
            (&"/srv".into(), &"app:app".into())
        );
        assert_eq!(config["config"]["Labels"], serde_json::json!({"org.example.one": "1"}));
        let ports = serde_json::json!({"53/udp": {}, "8080/tcp": {}, "99/tcp": {}});
        assert_eq!(config["config"]["ExposedPorts"], ports);
        // All digests are checked on the way.
        let copy = dir.path().join(format!("{transport}-copy"));
        skopeo(&["--insecure-policy", "copy", &source, &format!("dir:{}", copy.display())]);
        assert!(copy.join("manifest.json").exists());
    }
}

#[test]
fn what_a_format_cannot_hold_is_told_before_its_first_byte() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let query = |name: &str| ImportQuery {
        format: api::image::ImportFormat::Tar,
        ..ImportQuery::new(name, LayerKind::Base)
    };
    catalogue.import_reader(&query("wh"), &Tar::new().file("d/.wh.x", "a file").bytes()[..]).unwrap();
    for format in [ExportFormat::Oci, ExportFormat::Docker] {
        let error = catalogue.export("wh", format).err().unwrap();
        assert!(error.code == Code::InvalidArgument && error.message.contains("d/.wh.x"), "{error}");
    }
    assert!(!export(&catalogue, "wh", ExportFormat::Tar).is_empty());
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "").unwrap();
    xattr::set(source.join("f"), "user.a=b", b"v").unwrap();
    catalogue.import_dir(&query("equals"), &source).unwrap();
    for format in FORMATS {
        let error = catalogue.export("equals", format).err().unwrap();
        assert!(error.code == Code::InvalidArgument && error.message.contains("user.a=b"), "{error}");
        assert_eq!(catalogue.export("nobody", format).err().unwrap().code, Code::NotFound);
    }
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

/// A reader that goes away after so many bytes, or at a flush.
struct Leaves {
    bytes_left: usize,
    flushes_left: usize,
}

impl Write for Leaves {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.bytes_left.checked_sub(bytes.len());
        self.bytes_left = left.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        let left = self.flushes_left.checked_sub(1);
        self.flushes_left = left.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(())
    }
}

#[test]
fn a_reader_that_leaves_ends_the_export_and_leaves_nothing() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let files =
        (0..40).fold(Tar::new(), |tar, i| tar.file(&format!("f{i}"), &format!("{i} ").repeat(10_000)));
    let image = import_as(&catalogue, "image", &files.bytes());
    for format in FORMATS {
        for (bytes_left, flushes_left) in [(0, 1000), (2000, 1000), (4_000, 1000), (usize::MAX, 3)] {
            if format == ExportFormat::Tar && flushes_left == 3 {
                continue;
            }
            let export = catalogue.export("image", format).unwrap();
            let error = export.write(&mut Leaves { bytes_left, flushes_left }).unwrap_err();
            assert!(matches!(error, image::Error::Unread(_)), "{format:?}: {error:?}");
            assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
        }
    }
    // Removed while it is exported, it is exported to its end.
    let whole = export(&catalogue, "image", ExportFormat::Oci);
    let late = catalogue.export("image", ExportFormat::Oci).unwrap();
    catalogue.remove(&image.digest, &|_| false).unwrap();
    let mut bytes = Vec::new();
    late.write(&mut bytes).unwrap();
    assert!(bytes == whole);
}
