//! disk: checkpoint, rollback, fork, pack_diff, each beside what the kernel or tar takes for the same disk.
//!
//! One sandbox. Before each of them but the fork the volume is synced and the disk gets 10 MB anew: a snapshot has to
//! commit what is not on disk yet, so whoever came second after one write, or after what another has left to commit,
//! would be measured on another disk. The peers work on the sandbox's own
//! subvolume and upper directory: a read-only snapshot by ioctl, which neither freezes nor keeps a ledger; `tar`, which
//! gives no layer, no digest and no instant.

use std::{
    fs::File,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use libdsec::{ForkRequest, PackRequest, Sandbox};
use linux::btrfs::{self, Access};

use crate::{node::Node, report::Report};

const FORKS: u32 = 16;
const IMAGE: &str = "bench-packed";
const DIFF: &str = "head -c 10000000 /dev/urandom > /srv/diff";
/// First runs warm the caches and are not counted.
const WARM_UP_RUNS: usize = 2;

/// Of each verb, one time a round.
#[derive(Default)]
struct Samples {
    checkpoint: Vec<Duration>,
    snapshot: Vec<Duration>,
    rollback: Vec<Duration>,
    first_fork: Vec<Duration>,
    forks: Vec<Duration>,
    pack: Vec<Duration>,
    frozen: Vec<Duration>,
    tar: Vec<Duration>,
}

pub async fn measure(node: &Node, runs: usize, report: &mut Report) -> Result<()> {
    let sandbox = node.client.create(node.spec()).await?;
    let volume = node.data().join("volume");
    let mut warm = Samples::default();
    let mut samples = Samples::default();
    for run in 0..runs + WARM_UP_RUNS {
        let into = if run < WARM_UP_RUNS { &mut warm } else { &mut samples };
        write(&sandbox, &volume).await?;
        let uppers = volume.join("uppers");
        into.snapshot.push(snapshot(&uppers.join(sandbox.id().as_str()), &volume)?);
        checkpoint_and_back(&sandbox, &volume, into).await?;
        fork(&sandbox, into).await?;
        write(&sandbox, &volume).await?;
        into.tar.push(tar(&uppers.join(sandbox.id().as_str()).join("up"), &node.data().join("bench.tar"))?);
        write(&sandbox, &volume).await?;
        pack(node, &sandbox, into).await?;
    }
    sandbox.stop().await?;
    samples.put(report);
    Ok(())
}

impl Samples {
    fn put(&self, report: &mut Report) {
        report.put_ms("disk.checkpoint", &self.checkpoint);
        report.put_ms("floor.btrfs_snapshot", &self.snapshot);
        report.put_ms("disk.rollback", &self.rollback);
        report.put_ms(&format!("disk.fork_{FORKS}_first"), &self.first_fork);
        report.put_ms(&format!("disk.fork_{FORKS}"), &self.forks);
        report.put_ms("disk.pack_diff_10mb", &self.pack);
        report.put_ms("disk.pack_diff_10mb_frozen", &self.frozen);
        report.put_ms("peer.tar_10mb", &self.tar);
        report.put_ratio(
            "ratio.checkpoint_over_floor",
            "disk.checkpoint_ms_p50",
            "floor.btrfs_snapshot_ms_p50",
        );
        report.put_ratio("ratio.pack_diff_over_tar", "disk.pack_diff_10mb_ms_p50", "peer.tar_10mb_ms_p50");
    }
}

/// Noise, so that no layer holds it yet; and nothing but it waits to be committed.
async fn write(sandbox: &Sandbox, volume: &Path) -> Result<()> {
    rustix::fs::syncfs(File::open(volume)?)?;
    sandbox.sh(DIFF).user("root").output().await?.check()?;
    Ok(())
}

/// The kernel's part of a checkpoint alone.
fn snapshot(subvolume: &Path, volume: &Path) -> Result<Duration> {
    let name = "bench-snapshot";
    let (source, dir) = (File::open(subvolume)?, File::open(volume)?);
    let start = Instant::now();
    btrfs::snapshot(source.as_fd(), dir.as_fd(), name, Access::ReadOnly)?;
    let took = start.elapsed();
    btrfs::destroy_subvolume(dir.as_fd(), name).context("the snapshot of the bench stays")?;
    Ok(took)
}

async fn checkpoint_and_back(sandbox: &Sandbox, volume: &Path, into: &mut Samples) -> Result<()> {
    write(sandbox, volume).await?;
    let start = Instant::now();
    let checkpoint = sandbox.checkpoint(None).await?;
    into.checkpoint.push(start.elapsed());
    write(sandbox, volume).await?;
    let start = Instant::now();
    sandbox.rollback(&checkpoint.name).await?;
    into.rollback.push(start.elapsed());
    sandbox.remove_checkpoint(&checkpoint.name).await?;
    Ok(())
}

/// Until the first is ready, and the last.
async fn fork(sandbox: &Sandbox, into: &mut Samples) -> Result<()> {
    let start = Instant::now();
    let mut children = sandbox.fork(ForkRequest::new(FORKS));
    let (mut forks, mut first) = (Vec::new(), None);
    while let Some(child) = children.next().await {
        forks.push(child?);
        first.get_or_insert(start.elapsed());
    }
    into.forks.push(start.elapsed());
    into.first_fork.push(first.unwrap_or_default());
    try_join_all(forks.iter().map(|fork| fork.stop())).await?;
    Ok(())
}

async fn pack(node: &Node, sandbox: &Sandbox, into: &mut Samples) -> Result<()> {
    let start = Instant::now();
    let report = sandbox.pack_diff(PackRequest::new(IMAGE)).await?;
    into.pack.push(start.elapsed());
    into.frozen.push(Duration::from_micros(report.frozen_us));
    node.client.images().remove(IMAGE).await?;
    Ok(())
}

/// What anybody would do by hand, with the sandbox running on under it.
fn tar(upper: &Path, to: &Path) -> Result<Duration> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xattrs", "--file"]).arg(to).arg("--directory").arg(upper).arg(".");
    let start = Instant::now();
    let status = tar.stderr(Stdio::null()).status()?;
    let took = start.elapsed();
    std::fs::remove_file(to)?;
    // 1: a file changed while it was read.
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("tar ended with {status}");
    }
    Ok(took)
}
