//! Real root file systems (Debian's Python, node, Java) as images: what a sandbox of one shows is what GNU tar unpacks, by
//! GNU diff and by a walk of another hand, and what they are for works in it. By an import, and over a registry.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the slow road is of another test")]
#[path = "registry/server.rs"]
mod server;
#[path = "images/witness.rs"]
mod witness;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use futures_util::StreamExt;
use libdsec::{ExportFormat, ImportQuery, LayerKind, PullRequest, Sandbox, SandboxSpec};
use testkit::{Node, artifact::Artifacts, tests};

use server::Server;

fn main() -> ExitCode {
    testkit::suite::run(
        1,
        tests![
            python_by_import_and_back_over_a_registry,
            node_as_skopeo_packs_it,
            java_by_import,
            what_is_refused_leaves_nothing,
        ],
    )
}

fn run(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// What GNU tar makes of it.
fn unpacked(node: &Node, tar: &Path, name: &str) -> PathBuf {
    let tree = node.scratch().join(format!("unpacked-{name}"));
    fs::create_dir(&tree).unwrap();
    let mut command = Command::new("tar");
    command.args(["--extract", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-permissions"]);
    run(command.arg("--file").arg(tar).arg("--directory").arg(&tree));
    tree
}

async fn import(node: &Node, tar: &Path, name: &str) -> libdsec::ImageInfo {
    let query = ImportQuery {
        env: Some("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ..ImportQuery::new(name, LayerKind::Base)
    };
    node.client().images().import_path(tar, query, |_| ()).await.unwrap()
}

async fn sandbox(node: &Node, image: &str) -> Sandbox {
    node.sandbox_with(SandboxSpec { user: Some("root".into()), ..SandboxSpec::new(image) }).await
}

async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let out = sandbox.sh(script).timeout(Duration::from_secs(60)).output().await.unwrap();
    assert!(out.success(), "{script}: {}{}", out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

/// The image's tree in a new sandbox is `tree`.
async fn assert_shows(node: &Node, image: &str, tree: &Path, entries_min: usize) {
    let sandbox = sandbox(node, image).await;
    witness::assert_equal(tree, &sandbox, entries_min).await;
    sandbox.stop().await.unwrap();
}

const PYTHON: &str = r#"
python3 -m venv /srv/v && /srv/v/bin/pip --version
cat > /srv/test_it.py <<END
import json, sqlite3, ssl, unittest, urllib.request, zlib
import requests, yaml
class It(unittest.TestCase):
    def test_libraries(self):
        self.assertEqual(yaml.safe_load("a: [1, 2]"), {"a": [1, 2]})
        self.assertEqual(sqlite3.connect(":memory:").execute("select 6 * 7").fetchone(), (42,))
        self.assertGreater(len(ssl.create_default_context().get_ca_certs()), 50)
        self.assertEqual(requests.Request("GET", "http://x/", params={"a": 1}).prepare().url, "http://x/?a=1")
END
cd /srv && python3 -m unittest -v test_it 2>&1"#;

async fn python_by_import_and_back_over_a_registry(node: &Node) {
    // With entries that no package has: devices, holes, attributes, names of any bytes.
    let tar = witness::with_oddities(&Artifacts::image("python").unwrap(), node.scratch());
    let tree = unpacked(node, &tar, "python");
    let imported = import(node, &tar, "python").await;
    assert_shows(node, "python", &tree, 5000).await;
    let sandbox = sandbox(node, "python").await;
    let said = ok(&sandbox, PYTHON).await;
    assert!(said.contains("/srv/v/") && said.contains("OK"), "{said}");
    sandbox.stop().await.unwrap();

    let Some(server) = Server::start(&node.scratch().join("registry-python"), None) else { return };
    let archive = node.scratch().join("python.oci.tar");
    let mut stream = node.client().images().export("python", ExportFormat::Oci).await.unwrap();
    let mut file = tokio::fs::File::create(&archive).await.unwrap();
    while let Some(piece) = stream.next().await {
        tokio::io::AsyncWriteExt::write_all(&mut file, &piece.unwrap()).await.unwrap();
    }
    drop(file);
    let from = format!("oci-archive:{}", archive.display());
    skopeo(&from, &server, "python:back");
    fs::remove_file(&archive).unwrap();
    // So that nothing of it is known here.
    node.client().images().remove("python").await.unwrap();
    let request = PullRequest::new(format!("{}/python:back", server.address));
    let pulled = node.client().images().pull(request, |_| ()).await.unwrap();
    assert_eq!(pulled.layers, imported.layers);
    assert_shows(node, "python:back", &tree, 5000).await;
    node.client().images().remove("python:back").await.unwrap();
    fs::remove_dir_all(tree).unwrap();
}

fn skopeo(from: &str, server: &Server, name: &str) {
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]).arg(from);
    run(skopeo.arg(format!("docker://{}/{name}", server.address)));
}

const NODE: &str = r#"
cat > /srv/it.js <<'END'
const assert = require("assert"), crypto = require("crypto"), zlib = require("zlib"), { execFileSync } = require("child_process");
assert.equal(require("semver").inc("1.2.3", "minor"), "1.3.0");
assert.equal(crypto.createHash("sha256").update("").digest("hex").slice(0, 8), "e3b0c442");
assert.equal(zlib.gunzipSync(zlib.gzipSync("packed")).toString(), "packed");
assert.equal(new Intl.DateTimeFormat("de", { month: "long" }).format(new Date(0)), "Januar");
assert.equal(execFileSync("/bin/echo", ["child"]).toString(), "child\n");
require("worker_threads").Worker && new (require("worker_threads").Worker)("console.log('worker')", { eval: true })
    .on("exit", (code) => console.log("done", code));
END
node /srv/it.js"#;

async fn node_as_skopeo_packs_it(node: &Node) {
    let tar = Artifacts::image("node").unwrap();
    let tree = unpacked(node, &tar, "node");
    let Some(server) = Server::start(&node.scratch().join("registry-node"), None) else { return };
    skopeo(&format!("tarball:{}", tar.display()), &server, "node:1");
    let request = PullRequest::new(format!("{}/node:1", server.address));
    let pulled = node.client().images().pull(request, |_| ()).await.unwrap();
    assert_shows(node, "node:1", &tree, 5000).await;
    let sandbox = sandbox(node, "node:1").await;
    let said = ok(&sandbox, NODE).await;
    assert_eq!(said, "worker\ndone 0\n");
    sandbox.stop().await.unwrap();
    // The same tar by hand is the same layer.
    let imported = import(node, &tar, "node-by-hand").await;
    assert_eq!(imported.layers, pulled.layers);
    for name in ["node:1", "node-by-hand"] {
        node.client().images().remove(name).await.unwrap();
    }
    fs::remove_dir_all(tree).unwrap();
}

const JAVA: &str = r#"
java -version 2>&1
cat > /srv/It.java <<END
import java.security.KeyStore;
import java.util.stream.IntStream;
public class It {
    public static void main(String[] arguments) throws Exception {
        var threads = IntStream.range(0, 4).mapToObj(n -> new Thread(() -> System.out.println("thread"))).toList();
        for (var thread : threads) { thread.start(); }
        for (var thread : threads) { thread.join(); }
        var store = KeyStore.getInstance(new java.io.File("/etc/ssl/certs/java/cacerts"), "changeit".toCharArray());
        System.out.println("certificates " + (store.size() > 50));
        System.out.println("sum " + IntStream.rangeClosed(1, 100).sum());
    }
}
END
java -Xmx256m /srv/It.java"#;

async fn java_by_import(node: &Node) {
    let tar = Artifacts::image("java").unwrap();
    let tree = unpacked(node, &tar, "java");
    import(node, &tar, "java").await;
    assert_shows(node, "java", &tree, 5000).await;
    let sandbox = sandbox(node, "java").await;
    let said = ok(&sandbox, JAVA).await;
    assert!(said.contains("openjdk version") && said.matches("thread\n").count() == 4, "{said}");
    assert!(said.contains("certificates true") && said.contains("sum 5050"), "{said}");
    sandbox.stop().await.unwrap();
    node.client().images().remove("java").await.unwrap();
    fs::remove_dir_all(tree).unwrap();
}

/// Where a refused image could leave something.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    names: Vec<String>,
    mounts: usize,
}

fn left(node: &Node) -> Left {
    let mut names = Vec::new();
    let mut queue: Vec<PathBuf> = ["layers", "images", "known", "blobs", "tmp"]
        .iter()
        .map(|part| node.data().join("volume").join(part))
        .collect();
    while let Some(at) = queue.pop() {
        for entry in fs::read_dir(at).unwrap().map(|e| e.unwrap()) {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                queue.push(entry.path());
            }
            names.push(format!(
                "{} {}",
                entry.path().display(),
                if metadata.is_dir() { 0 } else { metadata.len() }
            ));
        }
    }
    names.sort();
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", node.pid().unwrap())).unwrap();
    Left { names, mounts: mounts.lines().count() }
}

fn open_files(node: &Node) -> usize {
    fs::read_dir(format!("/proc/{}/fd", node.pid().unwrap())).unwrap().count()
}

/// One entry of any name and kind.
fn hostile(kind: tar::EntryType, name: &[u8], link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(data.len() as u64);
    header.set_cksum();
    let mut tar = tar::Builder::new(Vec::new());
    tar.append(&header, data).unwrap();
    tar.into_inner().unwrap()
}

async fn what_is_refused_leaves_nothing(node: &Node) {
    use libdsec::Code;
    use tar::EntryType;
    const TRIES: usize = 25;
    // Of the sandbox that packs, below.
    let sandbox = sandbox(node, "debian").await;
    let abyss = "import os\nos.chdir('/srv')\nfor _ in range(10000): os.mkdir('d'); os.chdir('d')";
    assert!(sandbox.exec(["python3", "-c", abyss]).output().await.unwrap().success());
    let (before, files) = (left(node), open_files(node));
    let long = [&b"./"[..], &[b'n'; 97]].concat();
    let file = EntryType::Regular;
    let mut truncated = hostile(file, b"f", b"", &[7; 200_000]);
    truncated.truncate(100_000);
    let archives: Vec<(&str, Vec<u8>)> = vec![
        ("..", hostile(file, b"../../etc/passwd", b"", b"x")),
        ("hard link", hostile(EntryType::Link, b"f", b"/etc/shadow", b"")),
        ("symlink", hostile(EntryType::Symlink, b"s", b"", b"")),
        ("not supported", hostile(EntryType::new(b'M'), &long, b"", b"")),
        ("truncated", truncated),
    ];
    for _ in 0..TRIES {
        for (words, bytes) in &archives {
            let query = ImportQuery::new("hostile", LayerKind::Base);
            let path = node.scratch().join("hostile.tar");
            fs::write(&path, bytes).unwrap();
            let error = node.client().images().import_path(&path, query, |_| ()).await.unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{words}: {error}");
            assert!(error.message.contains(words), "{words}: {error}");
        }
    }
    // A disk whose tree is deeper than any path: made by who is inside.
    let error = sandbox.pack_diff(libdsec::PackRequest::new("hostile")).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(!error.message.contains("dsec-testkit"), "a path of the node: {error}");
    assert_eq!(left(node), before);
    // Idle connections of the SDK come and go; a file for each try would show.
    assert!(open_files(node) < files + TRIES, "{files} files were open, now {}", open_files(node));
    sandbox.stop().await.unwrap();
    assert!(node.client().images().list().await.unwrap().iter().all(|info| info.name != "hostile"));
}
