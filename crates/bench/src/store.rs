//! store: a large image on a node that has none of it: data on demand, with and without a trace, beside all of it first.
//!
//! The store is a real S3 server on loopback that answers as one across a network does: `LINK`. Every run has a node of
//! its own with an empty cache. The image is the test image and 5 GB of noise over it ([`noise`]).

pub mod noise;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use libdsec::{Code, Sandbox, SandboxSpec};
use noise::Noise;
use testkit::s3::{Link, Server};

use crate::{
    node::{IMAGE, Node},
    report::Report,
};

/// A data centre's object store, from one node.
const LINK: Link = Link { delay: Duration::from_millis(10), bytes_per_s: 250_000_000 };
const IMAGE_MB: u64 = 5_000;
const FETCH_WITHIN: Duration = Duration::from_secs(600);
const COLD_RUNS: usize = 5;
const START_RUNS: usize = 3;
const READS: u32 = 20_000;

/// Reads the files of the list, one after the other.
fn start() -> String {
    format!("xargs cat < {}/{} | wc -c", noise::AT, noise::START_LIST)
}

/// Python's own tests of these modules, which are in their texts.
const SUITE: &str = "cd /usr/lib/python3.11 && for m in difflib heapq bisect http/cookies json/__init__ collections/__init__ \
    statistics fractions doctest ast enum string textwrap; do python3 -m doctest $m.py > /dev/null; done; \
    python3 -m unittest -h > /dev/null; find /usr/lib/python3.11 -name '*.py' -newer /proc | wc -l";

/// Reads of 4 KiB at random places of a file's pages, which are in memory: nanoseconds for one.
const READ_4K: &str = r#"
import os, random, sys, time
names = [l.strip() for l in open(sys.argv[1])][:400]
files = [(os.open(n, os.O_RDONLY), os.stat(n).st_size) for n in names]
files = [(f, s) for f, s in files if s > 8192]
for f, s in files:
    while os.read(f, 1 << 20): pass
random.seed(7)
places = [(f, random.randrange(s // 4096) * 4096) for f, s in random.choices(files, k=int(sys.argv[2]))]
best = None
for _ in range(5):
    start = time.perf_counter_ns()
    for f, o in places: os.pread(f, 4096, o)
    took = time.perf_counter_ns() - start
    best = min(best or took, took)
print(best // len(places))
"#;

struct Bench {
    server: Server,
    image_bytes: u64,
}

pub async fn measure(report: &mut Report) -> Result<()> {
    let mb = std::env::var("DSEC_BENCH_STORE_MB").ok().map(|mb| mb.parse()).transpose()?.unwrap_or(IMAGE_MB);
    let server = tokio::task::spawn_blocking(|| Server::start("bench")).await??;
    let mut bench = Bench { server, image_bytes: 0 };
    let local_ns = bench.publish(Noise::of_mb(mb), report).await?;
    bench.server.set_link(LINK);
    bench.cold(report).await?;
    bench.starts(local_ns, report).await?;
    bench.eager(report).await?;
    bench.suite(report).await?;
    report.put_ratio("ratio.eager_over_cold", "store.eager_first_exec_ms", "store.cold_first_exec_ms_p50");
    report.put_ratio(
        "ratio.untraced_over_traced",
        "store.start_100mb_ms_p50",
        "store.start_100mb_traced_ms_p50",
    );
    report.put_ratio("ratio.read_4k_over_local", "store.read_4k_ns", "store.read_4k_local_ns");
    Ok(())
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        memory_bytes_max: 512 << 20,
        workspaces: vec![noise::IMAGE.into()],
        ..SandboxSpec::new(IMAGE)
    }
}

async fn run(sandbox: &Sandbox, script: &str) -> Result<String> {
    let out = sandbox.sh(script).user("root").timeout(Duration::from_secs(600)).output().await?;
    Ok(out.check()?.stdout_text())
}

async fn read_4k(sandbox: &Sandbox) -> Result<f64> {
    let list = format!("{}/{}", noise::AT, noise::START_LIST);
    let args = ["python3".to_owned(), "-c".into(), READ_4K.into(), list, READS.to_string()];
    let out = sandbox.exec(args).timeout(Duration::from_secs(600)).output().await?.check()?;
    out.stdout_text().trim().parse().context("the time of a read")
}

impl Bench {
    fn config(&self, more: &str) -> String {
        let endpoint = self.server.endpoint();
        format!("[store]\nurl = 's3://bench'\nendpoint = '{endpoint}'\nregion = 'us-east-1'\n{more}\n")
    }

    /// Fills the store; what a warm read of 4 KiB takes where all data is local, in nanoseconds.
    async fn publish(&mut self, noise: Noise, report: &mut Report) -> Result<f64> {
        let node = Node::bare(&self.config("")).await?;
        node.import().await?;
        noise.import(&node.client).await?;
        let start = Instant::now();
        for image in [IMAGE, noise::IMAGE] {
            node.client.images().publish(image).await?;
            self.image_bytes +=
                node.client.images().layers(image).await?.iter().map(|l| l.blob_bytes).sum::<u64>();
        }
        report.put("store.publish_mb_per_s", self.image_bytes as f64 / 1e6 / start.elapsed().as_secs_f64());
        report.put("store.image_mb", self.image_bytes as f64 / 1e6);
        let sandbox = node.client.create(spec()).await?;
        let local_ns = read_4k(&sandbox).await?;
        node.end().await?;
        // What the server has written must not be what the nodes that follow wait for.
        rustix::fs::syncfs(fs::File::open(self.server.objects())?)?;
        Ok(local_ns)
    }

    /// A node with an empty cache, a sandbox on it, and how long `script` in that took from the call to make it.
    async fn first(&self, more: &str, spec: SandboxSpec, script: &str) -> Result<(Node, Sandbox, Duration)> {
        let node = Node::bare(&self.config(more)).await?;
        self.server.take_seen();
        let start = Instant::now();
        let sandbox = loop {
            match node.client.create(spec.clone()).await {
                // A fetch of all takes longer than a call may; it goes on.
                Err(error) if error.code == Code::DeadlineExceeded && start.elapsed() < FETCH_WITHIN => {}
                made => break made?,
            }
        };
        run(&sandbox, script).await?;
        Ok((node, sandbox, start.elapsed()))
    }

    async fn cold(&self, report: &mut Report) -> Result<()> {
        let mut times = Vec::new();
        let mut fetched = 0;
        for _ in 0..COLD_RUNS {
            let (node, _, took) = self.first("prefetch = false", spec(), "true").await?;
            times.push(took);
            fetched = self.server.take_seen().sent_bytes;
            node.end().await?;
        }
        report.put_ms("store.cold_first_exec", &times);
        report.put("store.cold_fetched_mb", fetched as f64 / 1e6);
        report.put("store.cold_fetched_percent", fetched as f64 / self.image_bytes as f64 * 100.0);
        Ok(())
    }

    /// A program's start without a trace, the last of which leaves one, and with it.
    async fn starts(&self, local_ns: f64, report: &mut Report) -> Result<()> {
        let mut times = Vec::new();
        for nth in 0..START_RUNS {
            let idle = if nth + 1 < START_RUNS { 3_600_000 } else { 500 };
            let more = format!("prefetch = false\ntrace_idle_ms = {idle}");
            let (node, _, took) = self.first(&more, spec(), &start()).await?;
            times.push(took);
            if nth + 1 == START_RUNS {
                self.wait_for_traces().await?;
            }
            node.end().await?;
        }
        report.put_ms("store.start_100mb", &times);
        let mut times = Vec::new();
        for nth in 0..START_RUNS {
            let (node, sandbox, took) = self.first("", spec(), &start()).await?;
            times.push(took);
            if nth + 1 == START_RUNS {
                report.put("store.read_4k_local_ns", local_ns);
                report.put("store.read_4k_ns", read_4k(&sandbox).await?);
            }
            node.end().await?;
        }
        report.put_ms("store.start_100mb_traced", &times);
        Ok(())
    }

    async fn wait_for_traces(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let traces = self.server.objects().join("traces");
        while fs::read_dir(&traces).map_or(0, Iterator::count) < 2 {
            ensure!(Instant::now() < deadline, "no traces come");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn eager(&self, report: &mut Report) -> Result<()> {
        let (node, _, took) = self.first("fetch = 'eager'", spec(), "true").await?;
        report.put("store.eager_first_exec_ms", took.as_secs_f64() * 1e3);
        node.end().await
    }

    /// What a node writes to its disk for a test suite on the test image alone, both ways.
    async fn suite(&self, report: &mut Report) -> Result<()> {
        let mut written = Vec::new();
        for more in ["", "fetch = 'eager'"] {
            let (node, _, _) = self.first(more, SandboxSpec::new(IMAGE), SUITE).await?;
            let data = node.data();
            written.push(allocated(&data.join("cache"))? + allocated(&data.join("volume/layers"))?);
            node.end().await?;
        }
        let [lazy, eager] = written[..] else { return Ok(()) };
        report.put("store.suite_writes_mb", lazy as f64 / 1e6);
        report.put("store.suite_writes_eager_mb", eager as f64 / 1e6);
        report.put("store.suite_writes_fewer_percent", (1.0 - lazy as f64 / eager as f64) * 100.0);
        Ok(())
    }
}

/// The disk space of what is below a directory; nothing, where there is none.
fn allocated(dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        total += if metadata.is_dir() { allocated(&path)? } else { metadata.blocks() * 512 };
    }
    Ok(total)
}
