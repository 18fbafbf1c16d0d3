//! Pulling from a real registry (Debian's `docker-registry`), pushed to by a neutral hand (`skopeo`): what a sandbox
//! shows is what the layers say, entry by entry.
#![allow(clippy::unwrap_used)]

#[path = "registry/layout.rs"]
mod layout;
#[path = "registry/server.rs"]
mod server;
#[path = "registry/tree.rs"]
mod tree;

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode, time::Duration};

use libdsec::{Code, Credentials, LayerKind, PullRequest, SandboxSpec, Secret};
use testkit::{Node, tests};

use layout::{Layer, Layout};
use server::Server;

fn main() -> ExitCode {
    testkit::suite::run(
        1,
        tests![
            a_pulled_image_is_the_tree_that_was_pushed,
            images_that_share_layers_share_them_here,
            a_pull_and_an_import_are_one_image,
            a_registry_with_a_password,
            a_server_killed_in_a_pull_goes_on_from_its_blobs,
            a_pull_that_fails_leaves_nothing,
        ],
    )
}

/// The test's root file system, and over it a layer with whiteouts, an opaque directory, and one of everything.
fn layered(node: &Node) -> (Layout, Vec<Vec<u8>>) {
    let base = fs::read(&node.artifacts().rootfs).unwrap();
    let changes = Layer::new()
        .dir("opt", 0o755, (0, 0))
        .dir("opt/app", 0o2775, (1000, 33))
        .xattr("user.note", b"kept \x00 whole")
        .file("opt/app/run", 0o4755, (0, 0), b"#!/bin/sh\nexec echo ran\n")
        .file("opt/app/data", 0o640, (1000, 1000), &[7; 70_000])
        .hardlink("opt/app/data-again", "opt/app/data")
        .symlink("opt/app/link", "../app/./run")
        .file("opt/app/n\u{e4}me with space", 0o600, (65_534, 65_534), b"")
        .file("etc/motd", 0o644, (0, 0), b"changed\n")
        .whiteout("etc/debian_version")
        .whiteout("usr/share/doc")
        .dir("var/log", 0o700, (0, 0))
        .opaque("var/log")
        .bytes();
    let more = Layer::new()
        .file("opt/app/added", 0o644, (0, 0), b"later\n")
        .whiteout("opt/app/link")
        .dir("usr/share/doc", 0o755, (0, 0))
        .file("usr/share/doc/new", 0o644, (0, 0), b"new\n")
        .bytes();
    let layers = vec![base, changes, more];
    (Layout::of(&layers), layers)
}

fn pulled(server: &Server, repository: &str) -> PullRequest {
    PullRequest::new(format!("{}/{repository}", server.address))
}

async fn a_pulled_image_is_the_tree_that_was_pushed(node: &Node) {
    let Some(server) = Server::start(&node.scratch().join("registry-tree"), None) else { return };
    let (layout, layers) = layered(node);
    layout.push(&server, "test/system:1", &node.scratch().join("layout-tree"));
    // By the command line, as a person does.
    let out =
        node.cli().args(["--json", "image", "pull", &format!("{}/test/system:1", server.address)]).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), node.log_tail());
    let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((info["name"].as_str(), info["version"].as_str()), (Some("system"), Some("1")));
    assert_eq!(info["layers"].as_array().unwrap().len(), 3);

    let sandbox =
        node.sandbox_with(SandboxSpec { user: Some("root".into()), ..SandboxSpec::new("system:1") }).await;
    let expected = tree::of_layers(&layers);
    let found = tree::of_sandbox(&sandbox).await;
    tree::assert_equal(&expected, &found);
    let ran = sandbox.exec(["/opt/app/run"]).output().await.unwrap();
    assert_eq!(ran.stdout_text(), "ran\n");
    sandbox.stop().await.unwrap();
    node.client().images().remove("system:1").await.unwrap();
}

/// A small layer of bytes that do not pack.
fn noise(name: &str, bytes: usize) -> Vec<u8> {
    let mut state =
        name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| state.rotate_left(7) ^ u64::from(byte));
    let data = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    Layer::new().file(name, 0o644, (0, 0), &data.take(bytes).collect::<Vec<u8>>()).bytes()
}

async fn images_that_share_layers_share_them_here(node: &Node) {
    let Some(server) = Server::start(&node.scratch().join("registry-shared"), None) else { return };
    let (low, middle, high) = (noise("low", 2 << 20), noise("middle", 1 << 20), noise("high", 100_000));
    Layout::of(&[low.clone(), middle.clone()]).push(
        &server,
        "test/one:1",
        &node.scratch().join("layout-one"),
    );
    Layout::of(&[low, middle, high]).push(&server, "test/two:1", &node.scratch().join("layout-two"));
    let images = node.client().images();
    let mut told = Vec::new();
    let one = images.pull(pulled(&server, "test/one:1"), |p| told.push(p.clone())).await.unwrap();
    let last = told.pop().unwrap();
    assert!(last.layers_total == 2 && last.layers_reused == 0 && last.bytes_total > 3 << 20, "{last:?}");
    server.forget_requests();
    let two = images.pull(pulled(&server, "test/two:1"), |p| told.push(p.clone())).await.unwrap();
    let last = told.pop().unwrap();
    assert!(last.layers_total == 3 && last.layers_reused == 2 && last.bytes_total < 200_000, "{last:?}");
    assert_eq!(two.layers[..2], one.layers);
    assert_eq!(server.blobs_given(), 2, "the config and the new layer");
    // Removed one by one: the first takes only what is its own.
    images.remove("two:1").await.unwrap();
    server.forget_requests();
    images.pull(pulled(&server, "test/one:1"), |_| ()).await.unwrap();
    assert_eq!(server.blobs_given(), 1, "the config alone");
    images.remove("one:1").await.unwrap();
    let layers = node.data().join("volume/layers");
    assert!(two.layers.iter().all(|layer| !layers.join(layer.trim_start_matches("blake3:")).exists()));
}

async fn a_pull_and_an_import_are_one_image(node: &Node) {
    let Some(server) = Server::start(&node.scratch().join("registry-import"), None) else { return };
    let layout = Layout::of(&[noise("low", 300_000), Layer::new().whiteout("low").symlink("a", "b").bytes()]);
    let archive = node.scratch().join("layout-import");
    layout.push(&server, "test/same:1", &archive);
    let images = node.client().images();
    let query = libdsec::ImportQuery::new("by-import", LayerKind::Base);
    let imported = images.import_path(layout.archive(&archive), query, |_| ()).await.unwrap();
    server.forget_requests();
    let pulled = images.pull(pulled(&server, "test/same:1"), |_| ()).await.unwrap();
    assert_eq!((&pulled.digest, &pulled.layers), (&imported.digest, &imported.layers));
    assert_eq!(server.blobs_given(), 1, "what was imported is not fetched");
    images.remove("same:1").await.unwrap();
    images.remove("by-import").await.unwrap();
}

async fn a_registry_with_a_password(node: &Node) {
    let Some(server) = Server::start(&node.scratch().join("registry-password"), Some(("me", "secret")))
    else {
        return;
    };
    Layout::of(&[noise("low", 1000)]).push(
        &server,
        "test/private:1",
        &node.scratch().join("layout-password"),
    );
    let images = node.client().images();
    let request = |password: Option<&str>| PullRequest {
        credentials: password.map(|p| Credentials { username: "me".into(), password: Secret(p.into()) }),
        ..pulled(&server, "test/private:1")
    };
    for wrong in [None, Some("guessed")] {
        let error = images.pull(request(wrong), |_| ()).await.unwrap_err();
        assert_eq!(error.code, Code::Unauthenticated, "{error}");
    }
    images.pull(request(Some("secret")), |_| ()).await.unwrap();
    images.remove("private:1").await.unwrap();
    assert!(!node.log_tail().contains("secret"));
    // By the command line, the password on stdin.
    let secret = node.scratch().join("secret");
    fs::write(&secret, "secret\n").unwrap();
    let mut cli = node.cli();
    cli.args(["image", "pull", "--username", "me", "--password-stdin"]);
    cli.arg(format!("{}/test/private:1", server.address)).stdin(fs::File::open(&secret).unwrap());
    let out = cli.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    images.remove("private:1").await.unwrap();
}

async fn a_server_killed_in_a_pull_goes_on_from_its_blobs(node: &Node) {
    let Some(server) = Server::start(&node.scratch().join("registry-killed"), None) else { return };
    let layers: Vec<_> = (0..4).map(|n| noise(&format!("layer{n}"), 8 << 20)).collect();
    Layout::of(&layers).push(&server, "test/large:1", &node.scratch().join("layout-killed"));
    // The last layer comes at 400 KiB a second, so that the kill finds the others whole.
    let slow = server::Slow::before(&server, layers.len());
    let request = PullRequest::new(format!("{}/test/large:1", slow.address));
    let client = node.client();
    let pulling = tokio::spawn(async move { client.images().pull(request, |_| ()).await });
    let blobs = node.data().join("volume/blobs");
    for _ in 0..600 {
        if fs::read_dir(&blobs).unwrap().count() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 3, "{}", node.log_tail());
    node.restart_kill9().unwrap();
    pulling.await.unwrap().unwrap_err();
    server.forget_requests();
    let info = node.client().images().pull(pulled(&server, "test/large:1"), |_| ()).await.unwrap();
    assert_eq!(info.layers.len(), 4);
    assert_eq!(server.blobs_given(), 2, "the config, and the layer that was on its way");
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 0);
    node.client().images().remove("large:1").await.unwrap();
}

/// Names under a directory of the node's catalogue.
fn names(node: &Node, part: &str) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(node.data().join("volume").join(part)).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.metadata().unwrap().len())).collect()
}

async fn a_pull_that_fails_leaves_nothing(node: &Node) {
    let Some(mut server) = Server::start(&node.scratch().join("registry-broken"), None) else { return };
    let layers = [noise("fine", 300_000), noise("damaged", 300_000)];
    Layout::of(&layers).push(&server, "test/broken:1", &node.scratch().join("layout-broken"));
    let before: Vec<_> =
        ["layers", "images", "blobs", "known", "tmp"].iter().map(|part| names(node, part)).collect();
    let after = || {
        ["layers", "images", "blobs", "known", "tmp"].iter().map(|part| names(node, part)).collect::<Vec<_>>()
    };
    let images = node.client().images();
    let error = images.pull(pulled(&server, "test/nothing:1"), |_| ()).await.unwrap_err();
    assert_eq!(error.code, Code::NotFound, "{error}");
    // The registry's disk has lost a byte of a layer.
    damage(&node.scratch().join("registry-broken"), 300_000);
    let error = images.pull(pulled(&server, "test/broken:1"), |_| ()).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    server.stop();
    let error = images.pull(pulled(&server, "test/broken:1"), |_| ()).await.unwrap_err();
    assert_eq!(error.code, Code::Unreachable, "{error}");
    assert_eq!(after(), before);
}

/// Flips a byte in one stored blob of about that size.
fn damage(directory: &Path, bytes: u64) {
    let mut queue = vec![directory.to_owned()];
    while let Some(path) = queue.pop() {
        if path.is_dir() {
            queue.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if path.ends_with("data") && fs::metadata(&path).unwrap().len() >= bytes {
            let mut data = fs::read(&path).unwrap();
            let middle = data.len() / 2;
            data[middle] ^= 1;
            return fs::write(path, data).unwrap();
        }
    }
    panic!("no blob of {bytes} bytes");
}
