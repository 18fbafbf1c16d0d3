//! transfer: a large file up and down, a large output streamed, and what the server keeps in memory meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use libdsec::{Event, Sandbox, SandboxSpec};

use crate::{node::Node, process::resident_bytes, report::Report};

const CHUNK_BYTES: u64 = 256 << 10;

fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

async fn sandbox(node: &Node) -> Result<Sandbox> {
    let spec = SandboxSpec {
        memory_bytes_max: 1 << 30,
        disk_bytes_max: 4 << 30,
        cpu_millis_max: 2000,
        ..node.spec()
    };
    Ok(node.client.create(spec).await?)
}

/// `bytes` up to a file and down again.
pub async fn file(node: &Node, bytes: u64, report: &mut Report) -> Result<()> {
    let sandbox = sandbox(node).await?;
    let chunk = Bytes::from((0..CHUNK_BYTES).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
    let body = stream::iter((0..bytes / CHUNK_BYTES).map(move |_| Ok(chunk.clone()))).boxed();
    let start = Instant::now();
    let info = sandbox.files().write_stream("/tmp/large", body).await?;
    report.put("file.up_mb_per_s", mb_per_s(bytes, start.elapsed()));
    if info.size_bytes != bytes {
        bail!("the file has {} bytes", info.size_bytes);
    }
    let start = Instant::now();
    let mut body = sandbox.files().read_stream("/tmp/large").await?.body;
    let mut read = 0;
    while let Some(chunk) = body.next().await.transpose()? {
        read += chunk.len() as u64;
    }
    report.put("file.down_mb_per_s", mb_per_s(bytes, start.elapsed()));
    if read != bytes {
        bail!("{read} bytes came back");
    }
    sandbox.stop().await?;
    Ok(())
}

/// `bytes` of output of one command.
pub async fn output(node: &Node, bytes: u64, report: &mut Report) -> Result<()> {
    let sandbox = sandbox(node).await?;
    let watch = Watch::start(node.pid())?;
    let start = Instant::now();
    let mut process = sandbox.exec(["head", "-c", &bytes.to_string(), "/dev/zero"]).spawn().await?;
    let (mut got, mut dropped) = (0, 0);
    while let Some(event) = process.next().await? {
        match event {
            Event::Stdout(data) | Event::Stderr(data) => got += data.len() as u64,
            Event::Dropped { bytes, .. } => dropped += bytes,
            Event::Exit(_) => {}
        }
    }
    report.put("stream.mb_per_s", mb_per_s(got, start.elapsed()));
    report.put("stream.bytes_dropped_mb", dropped as f64 / 1e6);
    let (before, peak) = watch.stop();
    report.put("stream.server_rss_before_mb", before);
    report.put("stream.server_rss_peak_mb", peak);
    tokio::time::sleep(Duration::from_secs(1)).await;
    report.put("stream.server_rss_after_mb", resident_bytes(node.pid())? as f64 / f64::from(1 << 20));
    if got + dropped != bytes {
        bail!("{got} bytes came, {dropped} were dropped");
    }
    sandbox.stop().await?;
    Ok(())
}

/// Looks at a process's memory many times a second.
struct Watch {
    before: u64,
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn start(pid: u32) -> Result<Self> {
        let before = resident_bytes(pid)?;
        let (peak, over) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let (raise, ended) = (peak.clone(), over.clone());
        std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                raise.fetch_max(resident_bytes(pid).unwrap_or(0), Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Ok(Self { before, peak, over })
    }

    /// Before and peak, in mebibytes.
    fn stop(self) -> (f64, f64) {
        self.over.store(true, Relaxed);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        (mib(self.before), mib(self.peak.load(Relaxed)))
    }
}
