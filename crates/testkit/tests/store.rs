//! The store that nodes share: what one node makes starts sandboxes on another, over a directory and over S3.
#![allow(clippy::unwrap_used)]

#[path = "store/faults.rs"]
mod faults;
#[path = "store/kept.rs"]
mod kept;
#[path = "store/place.rs"]
mod place;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use libdsec::{Code, PackRequest};
use place::{Place, WORKER, fetched, ok, pid_of, published, sums};
use testkit::{Node, s3, suite::Test, tree::TREE};

macro_rules! alone {
    ($($name:path),* $(,)?) => {
        vec![$(Test::alone(stringify!($name), || Box::pin($name()))),*]
    };
}

fn main() -> ExitCode {
    let exit = testkit::suite::run(
        1,
        alone![
            a_directory_carries_images_from_node_to_node,
            an_s3_bucket_carries_images_from_node_to_node,
            what_is_damaged_in_the_store_is_refused,
            a_store_that_goes_comes_back,
            everything_is_published_by_itself,
            only_what_is_read_is_fetched,
            a_killed_file_server_is_a_pause,
            damaged_data_is_an_error_and_never_wrong_bytes,
            data_waits_for_a_store_that_is_away,
            fetched_whole_a_layer_needs_no_store,
            a_node_without_a_store_says_so,
            without_the_store_it_says_where_the_data_is,
            publishes_that_wait_survive_a_restart,
            kept::what_was_read_once_comes_before_it_is_asked_for,
            kept::what_no_image_needs_goes,
            faults::a_killed_holder_is_right_bytes_or_errors,
            faults::away_too_long_is_an_error_and_passes,
            faults::a_slow_store_is_asked_once_for_each_chunk,
            faults::a_small_cache_holds_its_bound,
            faults::what_is_damaged_while_it_is_read_is_right_bytes_or_errors,
        ],
    );
    place::forget();
    exit
}

/// A node that imports, works, packs and publishes: the packed image's tree.
async fn make(node: &Node) -> String {
    node.import().await.unwrap();
    let sandbox = node.sandbox().await;
    ok(&sandbox, "mkdir /opt/w && seq 200000 > /opt/w/numbers && rm -r /usr/share/bash-completion; sync")
        .await;
    sandbox.pack_diff(PackRequest::new("work")).await.unwrap();
    sandbox.stop().await.unwrap();
    let images = node.client().images();
    let first = images.publish("work").await.unwrap();
    assert_eq!(first.layers_sent as usize, first.image.layers.len());
    assert!(first.bytes_sent > 1 << 20 && first.objects_sent > 2, "{first:?}");
    let again = images.publish("work").await.unwrap();
    assert_eq!((again.layers_sent, again.objects_sent, again.bytes_sent), (0, 0, 0));
    let base = images.publish("debian").await.unwrap();
    assert_eq!(base.layers_sent, 0, "it is below the other");
    let sandbox = node.sandbox_with(libdsec::SandboxSpec::new("work")).await;
    let tree = ok(&sandbox, TREE).await;
    sandbox.stop().await.unwrap();
    tree
}

/// A node that has nothing but the store.
async fn use_it(node: &Node, tree: &str) {
    let images = node.client().images();
    assert!(images.list().await.unwrap().is_empty());
    let stored: Vec<String> = images.list_store().await.unwrap().into_iter().map(|i| i.name).collect();
    assert_eq!(stored, ["debian", "work"]);
    let spec = || libdsec::SandboxSpec::new("work");
    // At once: one fetch for all of them.
    let client = node.client();
    let (a, b, c) = tokio::join!(client.create(spec()), client.create(spec()), client.create(spec()));
    let all = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert_eq!(ok(&all[0], "tail -1 /opt/w/numbers").await, "200000\n");
    assert!(ok(&all[1], TREE).await == tree, "the trees differ");
    // Its own work goes back by the same road.
    ok(&all[2], "echo more > /opt/w/more").await;
    all[2].pack_diff(PackRequest::new("more")).await.unwrap();
    let sent = images.publish("more").await.unwrap();
    assert_eq!(sent.layers_sent, 1, "{sent:?}");
    for sandbox in all {
        sandbox.stop().await.unwrap();
    }
    let listed = node.cli().args(["image", "ls", "--store", "-q"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "debian:latest\nmore:latest\nwork:latest\n");
}

async fn two_nodes(flags: &[&str], env: &[(&str, &str)]) {
    let a = Node::start_bare(flags, env).unwrap();
    let tree = make(&a).await;
    let b = Node::start_bare(flags, env).unwrap();
    use_it(&b, &tree).await;
    // By digest, on the first node, which has never heard of it.
    let digest = b.client().images().inspect("more").await.unwrap().digest;
    let sandbox = a.sandbox_with(libdsec::SandboxSpec::new(&digest)).await;
    assert_eq!(ok(&sandbox, "cat /opt/w/more").await, "more\n");
    sandbox.stop().await.unwrap();
    b.stop().unwrap();
    a.stop().unwrap();
}

async fn a_directory_carries_images_from_node_to_node() {
    let place = Place::new();
    two_nodes(&["--store", &place.url()], &[]).await;
}

async fn an_s3_bucket_carries_images_from_node_to_node() {
    let server = tokio::task::spawn_blocking(|| s3::Server::start("layers")).await.unwrap().unwrap();
    let place = Place::new();
    let config = place.dir.path().join("dsec.toml");
    let text = format!(
        "[store]\nurl = 's3://layers/of/tests'\nendpoint = '{}'\nregion = 'us-east-1'\n",
        server.endpoint()
    );
    std::fs::write(&config, text).unwrap();
    let env = [("AWS_ACCESS_KEY_ID", s3::KEY), ("AWS_SECRET_ACCESS_KEY", s3::KEY)];
    two_nodes(&["--config", config.to_str().unwrap()], &env).await;
}

/// A restart that forgets the store: what is not here is said to be elsewhere, and is there again with it.
async fn without_the_store_it_says_where_the_data_is() {
    let place = published().await.place;
    let node = Node::start_bare(&["--store", &place.url()], &[]).unwrap();
    node.client().create(node.spec()).await.unwrap().stop().await.unwrap();
    node.kill9().unwrap();
    let said = |args: &[&str]| {
        let out = node.cli().args(args).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(said(&["up", "--detach", "--listen", "127.0.0.1:0"]).0, Some(0));
    let (code, error) = said(&["create", "debian"]);
    assert!(code == Some(125) && error.contains("unsupported") && error.contains("--store"), "{error}");
    node.restart_kill9().unwrap();
    node.client().create(node.spec()).await.unwrap().stop().await.unwrap();
    node.stop().unwrap();
}

async fn what_is_damaged_in_the_store_is_refused() {
    let place = published().await.place;
    let b = Node::start_bare(&["--store", &place.url()], &[]).unwrap();
    let manifest = std::fs::read_dir(place.path().join("layers")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&manifest).unwrap();
    // Another chunk's value, and half a manifest.
    let at = text.rfind("\"value\":\"").unwrap() + 9;
    let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    for bad in [changed.as_str(), &text[..text.len() / 2], "{}"] {
        std::fs::write(&manifest, bad).unwrap();
        let e = b.client().create(b.spec()).await.map(|_| ()).unwrap_err();
        assert_eq!(e.code, Code::Internal, "{e}");
        assert!(e.message.contains("damaged"), "{e}");
    }
    std::fs::write(&manifest, text).unwrap();
    assert!(b.client().images().list().await.unwrap().is_empty(), "nothing of it was taken");
    let sandbox = b.sandbox().await;
    sandbox.stop().await.unwrap();
    b.stop().unwrap();
}

async fn a_store_that_goes_comes_back() {
    let place = published().await.place;
    let b = Node::start_bare(&["--store", &place.url()], &[]).unwrap();
    let aside = place.dir.path().join("aside");
    std::fs::rename(place.path(), &aside).unwrap();
    let e = b.client().images().inspect("debian").await.unwrap_err();
    assert_eq!(e.code, Code::NoCapacity, "{e}");
    assert!(e.message.contains("store"), "{e}");
    std::fs::rename(&aside, place.path()).unwrap();
    assert_eq!(b.client().images().inspect("debian").await.unwrap().name, "debian");
    let e = b.client().images().inspect("other").await.unwrap_err();
    assert_eq!(e.code, Code::NotFound, "{e}");
    b.stop().unwrap();
}

async fn everything_is_published_by_itself() {
    let place = Place::new();
    let config = place.dir.path().join("dsec.toml");
    std::fs::write(&config, format!("[store]\nurl = '{}'\npublish = 'always'\n", place.url())).unwrap();
    let a = Node::start_bare(&["--config", config.to_str().unwrap()], &[]).unwrap();
    a.import().await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while a.client().images().list_store().await.unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is not published");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(place.objects().len() > 2);
    a.stop().unwrap();
}

async fn publishes_that_wait_survive_a_restart() {
    let place = Place::new();
    let a = place.node("publish = 'always'\nread_within_ms = 500");
    place.take_away();
    a.import().await.unwrap();
    let waiting = || std::fs::read_to_string(a.data().join("publish.json")).unwrap();
    assert_eq!(waiting(), "[\"debian:latest\"]");
    a.restart_kill9().unwrap();
    assert_eq!(waiting(), "[\"debian:latest\"]");
    place.bring_back();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while waiting() != "[]" {
        assert!(std::time::Instant::now() < deadline, "it is not published");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(a.client().images().list_store().await.unwrap().len(), 1);
    a.stop().unwrap();
}

async fn a_node_without_a_store_says_so() {
    let node = Node::start_bare(&[], &[]).unwrap();
    let images = node.client().images();
    assert_eq!(images.list_store().await.unwrap_err().code, Code::Unsupported);
    assert_eq!(images.publish("debian").await.unwrap_err().code, Code::Unsupported);
    assert_eq!(images.inspect("debian").await.unwrap_err().code, Code::NotFound);
    node.stop().unwrap();
}

/// A store with the test image in it, the tree of that, and a node that has neither read anything nor imported.
async fn remote() -> (Place, String, Node) {
    let stored = published().await;
    let node = stored.place.node("");
    (stored.place, stored.tree, node)
}

async fn only_what_is_read_is_fetched() {
    let (place, tree, b) = remote().await;
    b.client().images().inspect("debian").await.unwrap();
    assert_eq!(fetched(&b).await.0, 0);
    let sandbox = b.sandbox().await;
    assert_eq!(ok(&sandbox, "echo hello").await, "hello\n");
    let (little, all) = fetched(&b).await;
    assert!(little > 0 && little < all / 4, "{little} of {all}");
    assert!(ok(&sandbox, TREE).await == tree, "the trees differ");
    let (most, _) = fetched(&b).await;
    assert!(most > little && most <= all, "{most} of {all}: no chunk twice");
    // Another server finds the file server, and what is cached needs no store.
    b.restart_kill9().unwrap();
    assert_eq!(
        ok(&b.client().get(sandbox.id().as_str()).await.unwrap(), "cat /etc/hostname | wc -l").await,
        "1\n"
    );
    std::fs::rename(place.path(), place.dir.path().join("aside")).unwrap();
    assert!(ok(&b.sandbox().await, TREE).await == tree, "the trees differ");
    b.stop().unwrap();
}

async fn a_killed_file_server_is_a_pause() {
    let stored = published().await;
    let b = stored.place.node("");
    let sandbox = b.sandbox().await;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let sandbox = b.client().get(sandbox.id().as_str()).await.unwrap();
        readers.spawn(async move { sums(&sandbox).await });
    }
    let mut killed = 0;
    while killed < 8 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let pid = pid_of(&b, WORKER);
        if testkit::host::kill9(pid).is_ok() {
            killed += usize::from(!readers.is_empty());
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while pid_of(&b, WORKER) == pid {
            assert!(std::time::Instant::now() < deadline, "no new worker comes");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while let Some(read) = readers.try_join_next() {
            assert!(read.unwrap() == (stored.sums.clone(), 0), "a reader saw it");
        }
        if readers.is_empty() {
            break;
        }
    }
    assert!(killed > 1, "it was too fast to be killed");
    while let Some(read) = readers.join_next().await {
        assert!(read.unwrap() == (stored.sums.clone(), 0), "a reader saw it");
    }
    assert!(ok(&b.sandbox().await, TREE).await == stored.tree, "the trees differ");
    b.stop().unwrap();
}

/// `cat` of every file; how many of them could not be read.
const READ_ALL: &str =
    "find /usr -xdev -type f -size +64k -print0 | xargs -0 cat 2>&1 >/dev/null | grep -c 'Input/output'";

async fn damaged_data_is_an_error_and_never_wrong_bytes() {
    let stored = published().await;
    let (place, tree) = (stored.place, stored.tree);
    let b = place.node("read_within_ms = 1000");
    let sandbox = b.sandbox().await;
    ok(
        &sandbox,
        "find /bin /usr/bin -name 'xargs' -o -name find -o -name cat -o -name grep | xargs cat | grep -c x",
    )
    .await;
    let largest: Vec<PathBuf> = place.objects().into_iter().rev().take(4).collect();
    let sound: Vec<Vec<u8>> = largest.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, bytes) in largest.iter().zip(&sound) {
        let flipped: Vec<u8> = bytes.iter().map(|b| b ^ 0x10).collect();
        std::fs::write(path, flipped).unwrap();
    }
    let errors: u32 =
        sandbox.sh(READ_ALL).user("root").output().await.unwrap().stdout_text().trim().parse().unwrap();
    assert!(errors > 0, "somebody read what is damaged");
    // Cut short.
    for (path, bytes) in largest.iter().zip(&sound) {
        std::fs::write(path, &bytes[..10]).unwrap();
    }
    let errors: u32 =
        sandbox.sh(READ_ALL).user("root").output().await.unwrap().stdout_text().trim().parse().unwrap();
    assert!(errors > 0, "somebody read what is not there");
    for (path, bytes) in largest.iter().zip(&sound) {
        std::fs::write(path, bytes).unwrap();
    }
    assert!(ok(&sandbox, TREE).await == tree, "the trees differ");
    b.stop().unwrap();
}

async fn data_waits_for_a_store_that_is_away() {
    let (place, tree, b) = remote().await;
    let sandbox = b.sandbox().await;
    ok(&sandbox, "true").await;
    let aside = place.dir.path().join("aside");
    std::fs::rename(place.path(), &aside).unwrap();
    let reading = {
        let sandbox = b.client().get(sandbox.id().as_str()).await.unwrap();
        tokio::spawn(async move { ok(&sandbox, TREE).await })
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!reading.is_finished(), "it waits");
    std::fs::rename(&aside, place.path()).unwrap();
    assert!(reading.await.unwrap() == tree, "the trees differ");
    b.stop().unwrap();
}

async fn fetched_whole_a_layer_needs_no_store() {
    let place = published().await.place;
    let config = place.dir.path().join("dsec.toml");
    std::fs::write(&config, format!("[store]\nurl = '{}'\nfetch = 'eager'\n", place.url())).unwrap();
    let b = Node::start_bare(&["--config", config.to_str().unwrap()], &[]).unwrap();
    b.sandbox().await.stop().await.unwrap();
    std::fs::rename(place.path(), place.dir.path().join("aside")).unwrap();
    let layers = b.client().images().layers("debian").await.unwrap();
    assert!(layers.iter().all(|l| !l.remote), "{layers:?}");
    ok(&b.sandbox().await, "find / -xdev -type f -print0 | xargs -0 cat | wc -c").await;
    b.stop().unwrap();
}
