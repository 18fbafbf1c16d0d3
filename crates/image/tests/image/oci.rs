//! Images made here, no network: OCI layouts and docker archives, their whiteouts under a real overlay.

use std::{collections::BTreeMap, fs, io::Write, os::unix::fs::MetadataExt};

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::{archive::Tar, *};

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An OCI layout: layers as plain tars, stored in turn plain, gzip, zstd.
pub struct Layout {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub index: serde_json::Value,
}

impl Layout {
    pub fn new(layers: Vec<Vec<u8>>) -> Self {
        let mut blobs = BTreeMap::new();
        let mut put = |bytes: Vec<u8>| {
            let (hex, size) = (sha256(&bytes), bytes.len());
            blobs.insert(hex.clone(), bytes);
            json!({"mediaType": "application/vnd.oci.image.x", "digest": format!("sha256:{hex}"), "size": size})
        };
        let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": {
                "Env": ["PATH=/usr/bin", "EMPTY=", "EQ=a=b"], "WorkingDir": "/srv", "User": "app:app",
                "Labels": {"org.example.one": "1", "": "no name"},
                "ExposedPorts": {"8080/tcp": {}, "53/udp": {}, "99": {}, "no/port": {}},
                "Entrypoint": ["/never"], "Cmd": ["never"],
            },
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let layers: Vec<_> =
            layers.into_iter().enumerate().map(|(i, layer)| put(packed(i, &layer))).collect();
        let mut config = put(serde_json::to_vec(&config).unwrap());
        config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        let manifest = put(serde_json::to_vec(
            &json!({"schemaVersion": 2, "config": config, "layers": layers}),
        )
        .unwrap());
        Self { blobs, index: json!({"schemaVersion": 2, "manifests": [manifest]}) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let tar = Tar::new().dir("blobs/").dir("blobs/sha256/");
        let blobs = self.blobs.iter();
        let tar = blobs.fold(tar, |tar, (hex, bytes)| {
            tar.entry(EntryType::Regular, &format!("blobs/sha256/{hex}"), "", bytes)
        });
        tar.file("index.json", &self.index.to_string())
            .file("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)
            .bytes()
    }
}

fn packed(number: usize, layer: &[u8]) -> Vec<u8> {
    match number % 3 {
        0 => layer.to_vec(),
        1 => {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gz.write_all(layer).unwrap();
            gz.finish().unwrap()
        }
        _ => zstd::encode_all(layer, 3).unwrap(),
    }
}

pub fn layers() -> Vec<Vec<u8>> {
    let base = Tar::new()
        .dir("etc")
        .file("etc/kept", "base")
        .file("etc/gone", "base")
        .file("etc/changed", "base")
        .dir("opaque")
        .file("opaque/hidden", "base")
        .dir("whole")
        .file("whole/f", "base")
        .dir("again")
        .file("again/old", "base")
        .file("etc/.wh.nothing", "")
        .entry(EntryType::Directory, "usr/lib", "", b"")
        .symlink("lib", "usr/lib");
    let second = Tar::new()
        .file("etc/.wh.gone", "")
        .file("etc/changed", "second")
        .dir("opaque")
        .file("opaque/.wh..wh..opq", "")
        .file("opaque/new", "second")
        .file(".wh.whole", "")
        // The whiteout may stand after what replaces it.
        .dir("again")
        .file("again/new", "second")
        .file(".wh.again", "")
        .file(".wh..wh.plnk", "")
        .file("lib/added", "through the symlink below");
    let third = Tar::new().file("etc/gone", "third").file("etc/.wh.kept", "");
    vec![base.bytes(), second.bytes(), third.bytes()]
}

fn tree(layers: &[image::import::Built]) -> BTreeMap<String, String> {
    let mounts: Vec<_> =
        layers.iter().map(|layer| kernel::mount(&layer.meta(), layer.blob().as_deref())).collect();
    let merged = kernel::overlay(&mounts);
    let names = snapshot::take(&merged.path());
    let files = names.into_iter().filter(|(_, facts)| facts.content.is_some());
    files
        .map(|(path, _)| (path.display().to_string(), fs::read_to_string(merged.path().join(path)).unwrap()))
        .collect()
}

fn expected() -> BTreeMap<String, String> {
    let pairs = [
        ("etc/changed", "second"),
        ("etc/gone", "third"),
        ("opaque/new", "second"),
        ("again/new", "second"),
        ("usr/lib/added", "through the symlink below"),
    ];
    pairs.map(|(path, text)| (path.to_owned(), text.to_owned())).into()
}

#[test]
fn an_oci_layout_composes_as_its_layers_say() {
    let dir = scratch();
    let imported = import(&query(), &Layout::new(layers()).bytes(), dir.path()).unwrap();
    assert_eq!(imported.layers.len(), 3);
    imported.layers.iter().for_each(fsck);
    assert_eq!(tree(&imported.layers), expected());
    assert_eq!(imported.config.env["EQ"], "a=b");
    assert_eq!(imported.config.env["EMPTY"], "");
    assert_eq!(
        (imported.config.workdir.as_deref(), imported.config.user.as_deref()),
        (Some("/srv"), Some("app:app"))
    );
    // The second layer says nothing of /etc itself: what the base says stays.
    let second = kernel::mount(&imported.layers[1].meta(), imported.layers[1].blob().as_deref());
    let etc = fs::metadata(second.path().join("etc")).unwrap();
    assert_eq!((etc.uid(), etc.gid(), etc.mode() & 0o7777), (11, 12, 0o640));
    assert_eq!(xattr::get(second.path().join("opaque"), "trusted.overlay.opaque").unwrap().unwrap(), b"y");
    assert_eq!(fs::symlink_metadata(second.path().join("etc/gone")).unwrap().rdev(), 0);
}

#[test]
fn the_overlay_equals_what_an_independent_unpacking_shows() {
    let dir = scratch();
    let imported = import(&query(), &Layout::new(layers()).bytes(), dir.path()).unwrap();
    // Unpack the layers over each other by hand, as the image specification tells.
    let root = dir.path().join("unpacked");
    fs::create_dir(&root).unwrap();
    for layer in layers() {
        let entries = |layer: &[u8]| -> Vec<(String, EntryType, Vec<u8>)> {
            let mut archive = tar::Archive::new(layer);
            let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
                let mut entry = entry.unwrap();
                let mut data = Vec::new();
                std::io::copy(&mut entry, &mut data).unwrap();
                let path = entry.path().unwrap().display().to_string();
                let target = entry.link_name_bytes().map(|link| link.to_vec()).unwrap_or(data);
                (path, entry.header().entry_type(), target)
            };
            archive.entries().unwrap().map(read).collect()
        };
        let entries = entries(&layer);
        for (path, _, _) in entries.iter().filter(|(path, _, _)| path.contains(".wh.")) {
            let parent = root.join(path).parent().unwrap().to_owned();
            let name = path.rsplit('/').next().unwrap().strip_prefix(".wh.").unwrap();
            let gone = match name {
                ".wh..opq" => fs::read_dir(parent).into_iter().flatten().map(|e| e.unwrap().path()).collect(),
                _ => vec![parent.join(name)],
            };
            for path in gone {
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            }
        }
        for (path, kind, data) in entries.iter().filter(|(path, _, _)| !path.contains(".wh.")) {
            let full = root.join(path);
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            match kind {
                EntryType::Directory => fs::create_dir_all(&full).unwrap(),
                EntryType::Symlink => {
                    std::os::unix::fs::symlink(String::from_utf8_lossy(data).as_ref(), &full).unwrap();
                }
                _ => fs::write(&full, data).unwrap(),
            }
        }
    }
    let mounts: Vec<_> =
        imported.layers.iter().map(|layer| kernel::mount(&layer.meta(), layer.blob().as_deref())).collect();
    let merged = kernel::overlay(&mounts);
    let shape = |root: &Path| -> Vec<_> {
        let names = snapshot::take(root).into_iter();
        names.map(|(path, facts)| (path, facts.mode & 0o170_000, facts.content, facts.target)).collect()
    };
    assert_eq!(shape(&merged.path()), shape(&root));
}

#[test]
fn both_forms_of_docker_save() {
    let layers = layers();
    let layout = Layout::new(layers.clone());
    let config = layout.blobs.iter().find(|(_, bytes)| bytes.starts_with(b"{\"architecture")).unwrap();
    // Of old: a directory for each layer, links for repeated ones.
    let manifest = json!([{"Config": format!("{}.json", config.0), "RepoTags": ["x:1"],
        "Layers": ["l0/layer.tar", "l1/layer.tar", "l2/layer.tar"]}]);
    let old = Tar::new()
        .file(&format!("{}.json", config.0), std::str::from_utf8(config.1).unwrap())
        .entry(EntryType::Regular, "real/layer.tar", "", &layers[0])
        .symlink("l0/layer.tar", "../real/layer.tar")
        .entry(EntryType::Regular, "l1/layer.tar", "", &layers[1])
        .entry(EntryType::Regular, "l2/layer.tar", "", &layers[2])
        .file("manifest.json", &manifest.to_string())
        .bytes();
    let dir = scratch();
    let imported = import(&query(), &old, dir.path()).unwrap();
    assert_eq!(tree(&imported.layers), expected());
    assert_eq!(imported.config.user.as_deref(), Some("app:app"));
    // Of late: an OCI layout with a manifest.json beside it; here without the layout's own files.
    let names: Vec<_> = (0..3).map(|i| format!("blobs/sha256/{}", sha256(&packed(i, &layers[i])))).collect();
    let manifest = json!([{"Config": format!("blobs/sha256/{}", config.0), "Layers": names}]);
    let late = layout.blobs.iter().fold(Tar::new(), |tar, (hex, bytes)| {
        tar.entry(EntryType::Regular, &format!("blobs/sha256/{hex}"), "", bytes)
    });
    let late = late.file("manifest.json", &manifest.to_string()).bytes();
    let dir = scratch();
    assert_eq!(tree(&import(&query(), &late, dir.path()).unwrap().layers), expected());
}

#[test]
fn equal_and_empty_layers_are_not_stacked_twice() {
    let (a, b) = (Tar::new().file("a", "1").bytes(), Tar::new().file("b", "2").bytes());
    let dir = scratch();
    let layout = Layout::new(vec![a.clone(), Tar::new().bytes(), b, a, Tar::new().bytes()]);
    let imported = import(&query(), &layout.bytes(), dir.path()).unwrap();
    assert_eq!(imported.layers.len(), 2);
    assert_eq!(tree(&imported.layers).into_keys().collect::<Vec<_>>(), ["a", "b"]);
    let dir = scratch();
    let imported = import(&query(), &Layout::new(vec![Tar::new().bytes()]).bytes(), dir.path()).unwrap();
    assert_eq!(imported.layers.len(), 1, "an image of nothing is an empty layer");
}

#[test]
fn lies_about_content_are_refused() {
    let refused =
        |layout: &Layout| import(&query(), &layout.bytes(), scratch().path()).unwrap_err().to_string();
    for victim in Layout::new(layers()).blobs.keys() {
        let mut layout = Layout::new(layers());
        layout.blobs.get_mut(victim).unwrap().push(b' ');
        assert!(refused(&layout).contains("sha256"), "{victim}");
        layout.blobs.remove(victim);
        assert!(refused(&layout).contains("lacks"), "{victim}");
    }
    let mut layout = Layout::new(layers());
    layout.index["manifests"][0]["digest"] = json!("sha256:../../../etc/passwd");
    assert!(refused(&layout).contains("not a sha256 digest"));
    let mut layout = Layout::new(layers());
    let other = json!({"digest": format!("sha256:{}", "0".repeat(64))});
    layout.index["manifests"].as_array_mut().unwrap().push(other);
    assert!(refused(&layout).contains("2 images"));
    let many = vec![Tar::new().file("f", "").bytes(); 65];
    assert!(refused(&Layout::new(many)).contains("65 layers"));
    let loop_ =
        vec![Tar::new().symlink("a", "b").symlink("b", "a").bytes(), Tar::new().file("a/x", "").bytes()];
    assert!(refused(&Layout::new(loop_)).contains("too many symlinks"));
}

#[test]
fn attestations_and_other_platforms_are_passed_over() {
    let mut layout = Layout::new(layers());
    let mut real = layout.index["manifests"][0].clone();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    real["platform"] = json!({"os": "linux", "architecture": arch});
    let digest = json!(format!("sha256:{}", "1".repeat(64)));
    layout.index["manifests"] = json!([
        {"digest": digest, "platform": {"os": "linux", "architecture": "riscv64"}},
        real,
        {"digest": digest, "platform": {"os": "unknown", "architecture": "unknown"},
         "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
    ]);
    let dir = scratch();
    assert_eq!(import(&query(), &layout.bytes(), dir.path()).unwrap().layers.len(), 3);
}

#[test]
fn an_opaque_root_hides_all_layers_below() {
    let dir = scratch();
    let first = Tar::new().file("a", "1").bytes();
    let layout = Layout::new(vec![first, Tar::new().file(".wh..wh..opq", "").file("b", "2").bytes()]);
    let imported = import(&query(), &layout.bytes(), dir.path()).unwrap();
    // overlayfs takes no single lower layer without an upper one.
    let [layer] = &imported.layers[..] else { panic!("{} layers", imported.layers.len()) };
    let names = snapshot::take(&kernel::mount(&layer.meta(), layer.blob().as_deref()).path());
    assert_eq!(names.into_keys().collect::<Vec<_>>(), [Path::new(""), Path::new("b")]);
}

#[test]
fn hard_links_reach_through_a_symlink_below() {
    let dir = scratch();
    let first = Tar::new().dir("usr").dir("usr/lib").symlink("lib", "usr/lib").bytes();
    let layout = Layout::new(vec![first, Tar::new().file("lib/a", "1").hardlink("lib/b", "lib/a").bytes()]);
    let imported = import(&query(), &layout.bytes(), dir.path()).unwrap();
    assert_eq!(tree(&imported.layers).into_keys().collect::<Vec<_>>(), ["usr/lib/a", "usr/lib/b"]);
}
