//! idle: what a sandbox costs that does nothing, all of it, from how memory grows with many.
//!
//! The kernel's counters are the machine's, so what others do meanwhile is in them; with hundreds of sandboxes it is
//! little. PSS is of our processes only. Not counted: page cache, which is shared and given back under pressure.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::stream::{self, TryStreamExt};
use libdsec::SandboxSpec;

use crate::{
    node::Node,
    process::{Memory, resident_bytes},
    report::Report,
};

/// Pools fill, caches of freed objects drain.
const SETTLE: Duration = Duration::from_secs(2);
const STOPS_IN_FLIGHT: usize = 8;

pub async fn measure(node: &Node, live: u32, report: &mut Report) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    let before = Memory::now(node.pid())?;
    let start = Instant::now();
    // A tenth of a core each, so that a small node admits them all.
    let spec = SandboxSpec { cpu_millis_max: 100, ..node.spec() };
    let mut created = node.client.create_many(live, spec);
    let mut sandboxes = Vec::new();
    while let Some(sandbox) = created.next().await {
        sandboxes.push(sandbox?);
    }
    report.put(format!("create.batch_{live}_per_s"), f64::from(live) / start.elapsed().as_secs_f64());
    tokio::time::sleep(SETTLE).await;
    let grown = Memory::now(node.pid())?.since(&before);
    for (category, bytes) in &grown {
        report.put(format!("idle.{category}_kb"), bytes / f64::from(live) / 1024.0);
    }
    let all: f64 = grown.iter().map(|(_, bytes)| bytes).sum();
    report.put("idle.all_mb", all / f64::from(live) / f64::from(1 << 20));
    report.put("idle.live_count", f64::from(live));
    report.put("idle.server_rss_mb", resident_bytes(node.pid())? as f64 / f64::from(1 << 20));
    let start = Instant::now();
    stream::iter(sandboxes.iter().map(|s| Ok(s.stop())))
        .try_buffer_unordered(STOPS_IN_FLIGHT)
        .try_for_each(|()| async { Ok::<_, libdsec::Error>(()) })
        .await?;
    report.put(format!("stop.each_of_{live}_ms"), start.elapsed().as_secs_f64() * 1e3 / f64::from(live));
    Ok(())
}
