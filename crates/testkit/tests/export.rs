//! Images out of a node and merged on it: archives that others read and that come back the same, and what cannot be.
#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use futures_util::StreamExt;
use libdsec::{Code, ExportFormat, ImageInfo, ImportQuery, LayerKind, MergeRequest, SandboxSpec};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use testkit::{Node, artifact::Artifacts, tests};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

fn main() -> ExitCode {
    // One at a time: each has a CPU or two busy with packing.
    testkit::suite::run(
        1,
        tests![
            an_oci_archive_comes_back_the_same,
            a_docker_archive_comes_back_the_same,
            a_tar_is_what_a_sandbox_sees,
            a_merged_image_is_what_it_was,
            what_cannot_be_merged,
            what_cannot_be_exported,
            a_client_that_leaves_leaves_nothing,
            an_export_takes_little_memory,
            the_command_line,
        ],
    )
}

const RUN: &str = r#"{"config": {"Env": ["PATH=/usr/bin:/bin", "OF=three"], "WorkingDir": "/srv/tree", "User": "user"},
    "rootfs": {"type": "layers", "diff_ids": []}}"#;

fn add(tar: &mut Builder<impl std::io::Write>, kind: EntryType, name: &str, link: &str, data: &str) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    // A symlink can be made with this mode alone.
    header.set_mode(match kind {
        EntryType::Directory => 0o755,
        EntryType::Symlink => 0o777,
        _ => 0o640,
    });
    header.set_uid(1000);
    header.set_gid(100);
    header.set_mtime(1_700_000_000);
    header.set_size(data.len() as u64);
    match link {
        "" => tar.append_data(&mut header, name, data.as_bytes()).unwrap(),
        _ => tar.append_link(&mut header, name, link).unwrap(),
    }
}

fn layer(entries: &[(EntryType, &str, &str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    entries.iter().for_each(|(kind, name, link, data)| add(&mut tar, *kind, name, link, data));
    tar.into_inner().unwrap()
}

/// Over the test image a layer that adds and removes, and one that changes what that one has.
fn three(node: &Node) -> PathBuf {
    let path = node.scratch().join("three.tar");
    if path.exists() {
        return path;
    }
    let (file, dir) = (EntryType::Regular, EntryType::Directory);
    let long = format!("srv/tree/{}", "n".repeat(200));
    let second = layer(&[
        (dir, "srv/tree", "", ""),
        (file, "srv/tree/a", "", "second"),
        (EntryType::Link, "srv/tree/b", "srv/tree/a", ""),
        (EntryType::Link, "srv/tree/c", "srv/tree/a", ""),
        (dir, "srv/tree/hidden", "", ""),
        (file, "srv/tree/hidden/x", "", "gone later"),
        (dir, "srv/tree/kind", "", ""),
        (file, "srv/tree/kind/x", "", "gone later"),
        (EntryType::Symlink, "srv/tree/link", "a", ""),
        (EntryType::Fifo, "srv/tree/fifo", "", ""),
        (file, &long, "", "a long name"),
        (file, "etc/.wh.motd", "", ""),
    ]);
    let third = layer(&[
        (file, "srv/tree/.wh.b", "", ""),
        (file, "srv/tree/hidden/.wh..wh..opq", "", ""),
        (file, "srv/tree/hidden/y", "", "third"),
        (file, "srv/tree/kind", "", "a file now"),
    ]);
    let manifest = json!([{"Config": "config.json", "RepoTags": null, "Layers": ["0/layer.tar", "1/layer.tar", "2/layer.tar"]}]);
    let mut tar = Builder::new(File::create(&path).unwrap());
    add(&mut tar, file, "manifest.json", "", &manifest.to_string());
    add(&mut tar, file, "config.json", "", RUN);
    tar.append_path_with_name(Artifacts::find().unwrap().rootfs, "0/layer.tar").unwrap();
    for (name, bytes) in [("1/layer.tar", second), ("2/layer.tar", third)] {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    tar.into_inner().unwrap();
    path
}

/// The image of three layers, imported once.
async fn image_of_three(node: &Node) -> ImageInfo {
    if let Ok(image) = node.client().images().inspect("three").await {
        return image;
    }
    import(node, "three", &three(node)).await
}

async fn import(node: &Node, name: &str, path: &Path) -> ImageInfo {
    let query = ImportQuery::new(name, LayerKind::Base);
    node.client().images().import_path(path, query, |_| ()).await.unwrap()
}

/// Exports into a file. Gives its path and size.
async fn export(node: &Node, image: &str, format: ExportFormat) -> (PathBuf, u64) {
    let path = node.scratch().join("exported.tar");
    let mut file = tokio::fs::File::create(&path).await.unwrap();
    let mut archive = node.client().images().export(image, format).await.unwrap();
    let mut bytes = 0;
    while let Some(part) = archive.next().await {
        let part = part.unwrap();
        bytes += part.len() as u64;
        file.write_all(&part).await.unwrap();
    }
    file.flush().await.unwrap();
    (path, bytes)
}

/// All that is told of a tree, but for what each sandbox has of its own in `/etc`.
const LIST: &str = r"
    find ./srv ./home ./usr/bin ./usr/lib -xdev -printf '%p|%m|%U|%G|%y|%l|%T@\n'
    find ./etc ! -type d ! -name hostname ! -name hosts ! -name resolv.conf -printf '%p|%m|%U|%G|%y|%l|%T@|%s\n'
    find ./srv ./home ./etc -type f ! -name hostname ! -name hosts ! -name resolv.conf -exec sha256sum {} +
";

async fn seen_inside(node: &Node, image: &str) -> Vec<String> {
    let sandbox = node.sandbox_with(SandboxSpec::new(image)).await;
    let out = sandbox.sh(LIST).cwd("/").user("root").output_bytes_max(64 << 20).output().await.unwrap();
    assert!(out.success(), "{}", out.stderr_text());
    sandbox.stop().await.unwrap();
    sorted(&out.stdout_text())
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    assert!(lines.len() > 500, "{} lines", lines.len());
    lines
}

/// Says which lines differ, not both lists in full.
fn assert_same(expected: &[String], found: &[String]) {
    let missing: Vec<_> = expected.iter().filter(|line| found.binary_search(line).is_err()).take(5).collect();
    let more: Vec<_> = found.iter().filter(|line| expected.binary_search(line).is_err()).take(5).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing: {missing:#?}\nmore: {more:#?}");
}

/// None where skopeo is not installed.
fn skopeo(node: &Node, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut skopeo = Command::new("skopeo");
    let Ok(out) = skopeo.arg("--tmpdir").arg(node.scratch()).args(arguments).output() else {
        eprintln!("skipped: skopeo");
        return None;
    };
    assert!(out.status.success(), "skopeo: {}", String::from_utf8_lossy(&out.stderr));
    Some(out.stdout)
}

/// skopeo tells of it what it is, and takes it with every digest checked.
fn assert_taken(node: &Node, transport: &str, archive: &Path) {
    let source = format!("{transport}:{}", archive.display());
    let Some(told) = skopeo(node, &["inspect", "--config", &source]) else { return };
    let told: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(
        (&told["os"], &told["config"]["WorkingDir"]),
        (&json!("linux"), &json!("/srv/tree")),
        "{told}"
    );
    assert_eq!(told["rootfs"]["diff_ids"].as_array().unwrap().len(), 3);
    assert_eq!(told["history"].as_array().unwrap().len(), 3);
    let copy = node.scratch().join("copied");
    skopeo(node, &["--insecure-policy", "copy", &source, &format!("dir:{}", copy.display())]);
    fs::remove_dir_all(copy).unwrap();
}

async fn comes_back_the_same(node: &Node, format: ExportFormat, transport: &str) {
    let image = image_of_three(node).await;
    let (path, _) = export(node, "three", format).await;
    assert_taken(node, transport, &path);
    let again = import(node, "again", &path).await;
    assert_eq!((&again.layers, &again.config), (&image.layers, &image.config));
    assert_eq!(again.digest, image.digest);
    let first = fs::read(&path).unwrap();
    let (path, _) = export(node, "three", format).await;
    assert!(first == fs::read(path).unwrap(), "the same bytes each time");
    node.client().images().remove("again").await.unwrap();
}

async fn an_oci_archive_comes_back_the_same(node: &Node) {
    comes_back_the_same(node, ExportFormat::Oci, "oci-archive").await;
}

async fn a_docker_archive_comes_back_the_same(node: &Node) {
    comes_back_the_same(node, ExportFormat::Docker, "docker-archive").await;
}

async fn a_tar_is_what_a_sandbox_sees(node: &Node) {
    image_of_three(node).await;
    let inside = seen_inside(node, "three").await;
    for line in ["./srv/tree/hidden/y|", "./srv/tree/c|", "./srv/tree/fifo|"] {
        assert!(inside.iter().any(|l| l.starts_with(line)), "{line}");
    }
    for gone in ["./srv/tree/b|", "./srv/tree/hidden/x|", "./srv/tree/kind/x|", "./etc/motd|"] {
        assert!(!inside.iter().any(|l| l.starts_with(gone)), "{gone}");
    }
    let (path, _) = export(node, "three", ExportFormat::Tar).await;
    let root = node.scratch().join("root");
    fs::create_dir(&root).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--numeric-owner", "--same-owner", "--xattrs", "--xattrs-include=*", "-C"]);
    assert!(tar.arg(&root).arg("--file").arg(&path).status().unwrap().success());
    let out = Command::new("sh").arg("-c").arg(LIST).current_dir(&root).output().unwrap();
    let same = sorted(&String::from_utf8(out.stdout).unwrap());
    fs::remove_dir_all(&root).unwrap();
    assert_same(&inside, &same);
    let flat = import(node, "flat", &path).await;
    assert_eq!(flat.layers.len(), 1);
    assert_same(&inside, &seen_inside(node, "flat").await);
    node.client().images().remove("flat").await.unwrap();
}

async fn a_merged_image_is_what_it_was(node: &Node) {
    let images = node.client().images();
    let image = image_of_three(node).await;
    let merged = images.merge("three", MergeRequest::new("merged")).await.unwrap();
    assert_eq!((merged.name.as_str(), merged.version.as_str()), ("three", "merged"));
    assert_eq!((merged.layers.len(), &merged.config, merged.kind), (1, &image.config, image.kind));
    assert_same(&seen_inside(node, "three").await, &seen_inside(node, "three:merged").await);
    // The large one stays as it is, and is shared.
    let request = MergeRequest { threshold_bytes: 1 << 20, ..MergeRequest::new("part") };
    let part = images.merge("three", request).await.unwrap();
    assert_eq!((part.layers.len(), &part.layers[0]), (2, &image.layers[0]));
    assert_same(&seen_inside(node, "three").await, &seen_inside(node, "three:part").await);
    // It stands on its own, and after a restart.
    images.remove("three:part").await.unwrap();
    node.restart_kill9().unwrap();
    let images = node.client().images();
    assert_eq!(images.inspect("three:merged").await.unwrap(), merged);
    images.remove("three:merged").await.unwrap();
    assert_eq!(images.inspect("three").await.unwrap().layers, image.layers);
}

async fn what_cannot_be_merged(node: &Node) {
    image_of_three(node).await;
    let images = node.client().images();
    let code = async |reference: &str, request| images.merge(reference, request).await.unwrap_err().code;
    assert_eq!(code("nobody", MergeRequest::new("x")).await, Code::NotFound);
    assert_eq!(code("three", MergeRequest::new("latest")).await, Code::AlreadyExists);
    assert_eq!(code("three", MergeRequest::new("a/b")).await, Code::InvalidArgument);
    assert_eq!(code("debian", MergeRequest::new("x")).await, Code::InvalidArgument, "one layer");
    let none = MergeRequest { threshold_bytes: 0, ..MergeRequest::new("x") };
    assert_eq!(code("three", none).await, Code::InvalidArgument);
    for (body, field) in [
        (r#"{"version": 7}"#, "version"),
        (r#"{"version": "x", "threshold": 1}"#, "threshold"),
        ("{}", "version"),
    ] {
        let (status, answer) = call(node, "POST", "/v1/images/three/merge", body).await;
        assert!(status == 400 && answer["code"] == "invalid_argument", "{body}: {status} {answer}");
        assert!(answer["message"].as_str().unwrap().contains(field), "{answer}");
    }
    assert_eq!(scratch_files(node), 0);
}

async fn what_cannot_be_exported(node: &Node) {
    let error = node.client().images().export("nobody", ExportFormat::Oci).await.err().unwrap();
    assert_eq!(error.code, Code::NotFound);
    for (path, status, code) in [
        ("/v1/images/debian/export?format=zip", 400, "invalid_argument"),
        ("/v1/images/debian/export?form=tar", 400, "invalid_argument"),
        ("/v1/images/no%2Fslash/export", 400, "invalid_argument"),
        ("/v1/images/nobody/export?format=docker", 404, "not_found"),
    ] {
        let (found, answer) = call(node, "GET", path, "").await;
        assert!(found == status && answer["code"] == code, "{path}: {found} {answer}");
    }
    // A name that means something else in a layer is told before the first byte.
    let path = node.scratch().join("wh.tar");
    fs::write(&path, layer(&[(EntryType::Regular, "d/.wh.x", "", "a file")])).unwrap();
    let query =
        ImportQuery { format: libdsec::ImportFormat::Tar, ..ImportQuery::new("wh", LayerKind::Toolkit) };
    let images = node.client().images();
    images.import_path(&path, query, |_| ()).await.unwrap();
    let error = images.export("wh", ExportFormat::Oci).await.err().unwrap();
    assert!(error.code == Code::InvalidArgument && error.message.contains("d/.wh.x"), "{error}");
    let mut tar = images.export("wh", ExportFormat::Tar).await.unwrap();
    assert!(tar.next().await.unwrap().is_ok());
    images.remove("wh").await.unwrap();
    assert_eq!(scratch_files(node), 0);
}

/// What is being made in the catalogue, and files that the server still holds without a name.
fn scratch_files(node: &Node) -> usize {
    let scratch = fs::read_dir(node.data().join("volume/tmp")).unwrap().count();
    let open = fs::read_dir(format!("/proc/{}/fd", node.pid().unwrap())).unwrap().flatten();
    let open = open.filter_map(|fd| fs::read_link(fd.path()).ok());
    scratch + open.filter(|file| file.to_string_lossy().contains("layer.tar.gz")).count()
}

async fn settled(node: &Node) {
    for _ in 0..100 {
        if scratch_files(node) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{} files are left of an export that nobody reads", scratch_files(node));
}

async fn a_client_that_leaves_leaves_nothing(node: &Node) {
    let images = node.client().images();
    for format in [ExportFormat::Oci, ExportFormat::Docker, ExportFormat::Tar] {
        let mut archive = images.export("debian", format).await.unwrap();
        assert!(!archive.next().await.unwrap().unwrap().is_empty());
        if format != ExportFormat::Tar {
            assert_ne!(scratch_files(node), 0, "it is being packed");
        }
        drop(archive);
        settled(node).await;
    }
    // The image can go while it is exported: the export ends all the same, whole.
    let (path, _) = export(node, "debian", ExportFormat::Tar).await;
    import(node, "goes", &path).await;
    let mut archive = images.export("goes", ExportFormat::Tar).await.unwrap();
    let mut bytes = archive.next().await.unwrap().unwrap().len() as u64;
    images.remove("goes").await.unwrap();
    while let Some(part) = archive.next().await {
        bytes += part.unwrap().len() as u64;
    }
    assert_eq!(bytes, fs::metadata(&path).unwrap().len());
    settled(node).await;
}

async fn an_export_takes_little_memory(node: &Node) {
    for format in [ExportFormat::Oci, ExportFormat::Tar] {
        let before = node.server_rss_bytes().unwrap();
        let mut archive = node.client().images().export("debian", format).await.unwrap();
        let (mut bytes, mut grown) = (0, 0);
        while let Some(part) = archive.next().await {
            bytes += part.unwrap().len();
            if bytes % (1 << 20) < 64 << 10 {
                grown = grown.max(node.server_rss_bytes().unwrap().saturating_sub(before));
            }
        }
        assert!(bytes > 40 << 20, "{format:?}: {bytes}");
        assert!(grown < 32 << 20, "{format:?}: {grown} bytes more for {bytes}");
    }
}

async fn the_command_line(node: &Node) {
    image_of_three(node).await;
    let run = |arguments: &[&str]| node.cli().args(arguments).output().unwrap();
    let file = node.scratch().join("by-cli.tar");
    let name = file.to_str().unwrap();
    let out = run(&["--json", "image", "export", "three", "--format", "tar", "-o", name]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["bytes"].as_u64(), Some(fs::metadata(&file).unwrap().len()));
    let piped = run(&["image", "export", "three", "--format", "tar", "-o", "-"]);
    assert!(piped.stdout == fs::read(&file).unwrap(), "the same down a pipe");
    // What fails leaves the file that was there.
    let failed = run(&["image", "export", "nobody", "-o", name]);
    assert_eq!(failed.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("not_found"));
    assert_eq!(fs::metadata(&file).unwrap().len(), piped.stdout.len() as u64);
    let nowhere = run(&["image", "export", "debian", "--format", "tar", "-o", "/nowhere/at/all"]);
    assert_eq!(nowhere.status.code(), Some(125));
    assert_eq!(run(&["image", "export", "three", "--format", "zip"]).status.code(), Some(2));
    assert!(run(&["image", "export", "debian", "--format", "tar", "-o", "/dev/null"]).status.success());
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    let merged = run(&["image", "merge", "three", "--as", "cli", "--threshold", "3GiB"]);
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    assert!(String::from_utf8_lossy(&merged.stdout).starts_with("three:cli  1 layer, "));
    let again = run(&["image", "merge", "three", "--as", "cli"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already_exists"));
    assert!(run(&["image", "rm", "three:cli"]).status.success());
    settled(node).await;
}

/// A request as bytes; the answer's status and object.
async fn call(node: &Node, method: &str, path: &str, body: &str) -> (u16, Value) {
    let access = node.access();
    let mut stream =
        TcpStream::connect(access.url.trim_start_matches("http://").trim_end_matches('/')).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        access.api_key,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let object = text.find("\r\n\r\n{").map_or("null", |at| text[at + 4..].trim());
    (status, serde_json::from_str(object).unwrap_or(Value::Null))
}
