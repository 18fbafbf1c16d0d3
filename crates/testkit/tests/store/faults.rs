//! What goes wrong between a sandbox and its bytes: a file server that is killed, a store that is away, slow or damaged,
//! a cache that is too small. Whatever it is, a read is right or an error.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use libdsec::Code;
use testkit::{Node, host, s3, tree::TREE};

use crate::place::{
    HOLDER, Place, WORKER, assert_right, fetched, ok, pid_of, published, some_sums, sums, warm,
};

const HASTY: &str = "read_within_ms = 1000";

pub async fn a_killed_holder_is_right_bytes_or_errors() {
    let stored = published().await;
    let b = stored.place.node(HASTY);
    let sandbox = b.sandbox().await;
    warm(&sandbox).await;
    host::kill9(pid_of(&b, HOLDER)).unwrap();
    // The worker has the connection too.
    let some = ok(&sandbox, "find /usr/bin -type f -size +32k | sort | head -8 | xargs sha256sum").await;
    let some = some.lines().filter_map(|l| l.split_once("  ")).map(|(s, p)| (p.into(), s.into())).collect();
    assert_eq!(assert_right(&some, &stored.sums), 8);
    host::kill9(pid_of(&b, WORKER)).unwrap();
    let (got, errors) = some_sums(&sandbox).await;
    assert!(errors > 0, "somebody serves it still");
    assert_eq!(assert_right(&got, &stored.sums) + errors, 24);
    // The next server mounts anew, for those that come.
    b.restart_kill9().unwrap();
    assert!(ok(&b.sandbox().await, TREE).await == stored.tree, "the trees differ");
    let old = b.client().get(sandbox.id().as_str()).await.unwrap();
    let (got, errors) = sums(&old).await;
    assert!(errors > 0, "its file system was of the old connection");
    assert_right(&got, &stored.sums);
    b.stop().unwrap();
}

pub async fn away_too_long_is_an_error_and_passes() {
    let stored = published().await;
    let b = stored.place.node(HASTY);
    let sandbox = b.sandbox().await;
    warm(&sandbox).await;
    let largest = ok(&sandbox, "find /usr/lib -type f -size +512k | sort | tail -1").await;
    let file = &format!("sha256sum {largest}");
    stored.place.take_away();
    let out = sandbox.sh(file).user("root").output().await.unwrap();
    assert!(!out.success() && out.stderr_text().contains("Input/output error"), "{}", out.stderr_text());
    stored.place.bring_back();
    let (sum, path) =
        ok(&sandbox, file).await.trim().split_once("  ").map(|(s, p)| (s.into(), p.into())).unwrap();
    assert_right(&[(path, sum)].into(), &stored.sums);
    b.stop().unwrap();
}

/// A node on an S3 server that has the test image.
async fn over_s3(server: &s3::Server, more: &str, store: &Path) -> (Place, Node) {
    let copied =
        std::process::Command::new("cp").arg("-a").arg(store.join(".")).arg(server.objects()).status();
    assert!(copied.unwrap().success());
    let place = Place::new();
    let config = place.dir.path().join("dsec.toml");
    let text = format!(
        "[store]\nurl = 's3://layers'\nendpoint = '{}'\nregion = 'us-east-1'\n{more}\n",
        server.endpoint()
    );
    fs::write(&config, text).unwrap();
    let env = [("AWS_ACCESS_KEY_ID", s3::KEY), ("AWS_SECRET_ACCESS_KEY", s3::KEY)];
    let node = Node::start_bare(&["--config", config.to_str().unwrap()], &env).unwrap();
    (place, node)
}

pub async fn a_slow_store_is_asked_once_for_each_chunk() {
    let stored = published().await;
    let server = tokio::task::spawn_blocking(|| s3::Server::start("layers")).await.unwrap().unwrap();
    let (_config, b) = over_s3(&server, "", &stored.place.path()).await;
    let sandbox = b.sandbox().await;
    warm(&sandbox).await;
    server.set_link(s3::Link { delay: Duration::from_millis(30), bytes_per_s: 0 });
    server.take_seen();
    let script = "f=$(find /usr -xdev -type f -size +2M | sort | head -1); \
        for i in $(seq 32); do sha256sum $f & done; wait";
    let text = ok(&sandbox, script).await;
    let lines: Vec<_> = text.lines().filter_map(|l| l.split_once("  ")).collect();
    assert_eq!(lines.len(), 32);
    for (sum, path) in lines {
        assert_right(&[(path.to_owned(), sum.to_owned())].into(), &stored.sums);
    }
    let (got, errors) = sums(&sandbox).await;
    assert!(errors == 0 && got == stored.sums, "{errors}");
    let mut seen = server.take_seen();
    assert!((1..=16).contains(&seen.in_flight_max), "{}", seen.in_flight_max);
    seen.reads.sort();
    assert!(seen.reads.len() > 20);
    for pair in seen.reads.windows(2) {
        let apart = pair[0].path != pair[1].path || pair[0].start + pair[0].bytes <= pair[1].start;
        assert!(apart, "a chunk was fetched twice: {pair:?}");
    }
    b.stop().unwrap();
}

/// The bytes of all files below a directory.
fn size_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |path: PathBuf| match path.is_dir() {
        true => size_of(&path),
        // One that is renamed or removed meanwhile is none.
        false => fs::metadata(path).map_or(0, |m| m.len()),
    };
    entries.map(|entry| size(entry.path())).sum()
}

pub async fn a_small_cache_holds_its_bound() {
    const CACHE_BYTES_MAX: u64 = 8 << 20;
    /// Each of the fetches that may be under way may be writing one.
    const ON_THEIR_WAY: u64 = 16 * (264 << 10);
    let stored = published().await;
    let b = stored.place.node(&format!("cache_bytes_max = {CACHE_BYTES_MAX}"));
    let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watching = {
        let (most, done, cache) = (most.clone(), done.clone(), b.data().join("cache"));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(size_of(&cache), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    };
    let sandbox = b.sandbox().await;
    let mut fetched_before = 0;
    for round in 0..2 {
        let (got, errors) = sums(&sandbox).await;
        assert!(errors == 0 && got == stored.sums, "{round}: {errors}");
        let (now, _) = fetched(&b).await;
        assert!(now > fetched_before + 4 * CACHE_BYTES_MAX, "{round}: {fetched_before} {now}");
        fetched_before = now;
        // Out of the kernel's memory, so that they are asked for again.
        let drop = "find /usr -xdev -type f -size +32k -exec dd if={} iflag=nocache count=0 status=none \\;";
        ok(&sandbox, drop).await;
    }
    done.store(true, Ordering::Relaxed);
    watching.join().unwrap();
    let most = most.load(Ordering::Relaxed);
    assert!((CACHE_BYTES_MAX / 2..=CACHE_BYTES_MAX + ON_THEIR_WAY).contains(&most), "{most}");
    b.stop().unwrap();
}

/// Every object at once, cut or changed in its middle, while a sandbox reads.
pub async fn what_is_damaged_while_it_is_read_is_right_bytes_or_errors() {
    let stored = published().await;
    let b = stored.place.node(HASTY);
    let sandbox = b.sandbox().await;
    warm(&sandbox).await;
    let objects = stored.place.objects();
    let sound: Vec<Vec<u8>> = objects.iter().map(|path| fs::read(path).unwrap()).collect();
    let reading = {
        let sandbox = b.client().get(sandbox.id().as_str()).await.unwrap();
        tokio::spawn(async move { some_sums(&sandbox).await })
    };
    for (nth, (path, bytes)) in objects.iter().zip(&sound).enumerate() {
        let changed: Vec<u8> = match nth % 3 {
            0 => bytes[..bytes.len() / 2].to_vec(),
            1 => bytes.iter().map(|b| b ^ 1).collect(),
            _ => vec![0; bytes.len()],
        };
        fs::write(path, changed).unwrap();
    }
    let (got, errors) = reading.await.unwrap();
    assert_eq!(assert_right(&got, &stored.sums) + errors, 24);
    assert!(errors > 0, "all was read before it was damaged");
    // Another node cannot even start it: the meta is one of them.
    let c = stored.place.node(HASTY);
    let error = c.client().create(c.spec()).await.map(|_| ()).unwrap_err();
    assert!(error.code == Code::Internal && error.message.contains("damaged"), "{error}");
    for (path, bytes) in objects.iter().zip(&sound) {
        fs::write(path, bytes).unwrap();
    }
    let (got, errors) = sums(&sandbox).await;
    assert!(errors == 0 && got == stored.sums, "{errors}");
    c.sandbox().await.stop().await.unwrap();
    c.stop().unwrap();
    b.stop().unwrap();
}
