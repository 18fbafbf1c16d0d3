//! image: import beside `tar x`, an export, a merge, a small diff over a large image, and the page cache that a hundred
//! sandboxes of one image share.
//!
//! All by the node's API; the peer, `tar x`, on the node's own volume. Both sides are synced: an import is by itself, the
//! peer by `syncfs`. What is read is in the page cache for both.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use libdsec::{ExportFormat, ImportQuery, LayerKind, MergeRequest, PackRequest, Sandbox, SandboxSpec};

use crate::{archive, node::Node, report::Report};

const RUNS: usize = 3;
/// Of the test image, so that the archive has about 300 MB and more.
const COPIES: usize = 2;
const SMALL_FILES: usize = 60_000;
const MERGED_LAYERS: usize = 10;
const MERGED_LAYER_BYTES: usize = 30_000_000;
const SHARED_FILES: usize = 60;
const SHARED_FILE_BYTES: usize = 2 << 20;
const SANDBOXES: usize = 100;
const LARGE_FILES: usize = 1000;
const LARGE_FILE_BYTES: usize = 5 << 20;

fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

async fn import(node: &Node, path: &Path, name: &str) -> Result<Duration> {
    let start = Instant::now();
    node.client.images().import_path(path, ImportQuery::new(name, LayerKind::Base), |_| ()).await?;
    Ok(start.elapsed())
}

/// Import and `tar x` of real trees and of many small files; an export of the first.
pub async fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let path = node.data().join("bench-image.tar");
    archive::copies_of(&root(), COPIES, &path)?;
    beside_tar(node, &path, "import", "tar_x", report).await?;
    report.put_ratio("ratio.import_over_tar_x", "image.import_ms_p50", "peer.tar_x_ms_p50");
    report.put("image.import_archive_mb", fs::metadata(&path)?.len() as f64 / 1e6);
    export(node, &path, report).await?;
    archive::small_files(SMALL_FILES, &path)?;
    beside_tar(node, &path, "import_60k", "tar_x_60k", report).await?;
    report.put_ratio("ratio.import_60k_over_tar_x", "image.import_60k_ms_p50", "peer.tar_x_60k_ms_p50");
    fs::remove_file(&path)?;
    merge(node, report).await
}

async fn beside_tar(node: &Node, path: &Path, key: &str, peer: &str, report: &mut Report) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let volume = node.data().join("volume");
        rustix::fs::syncfs(File::open(&volume)?)?;
        io::copy(&mut File::open(path)?, &mut io::sink())?;
        ours.push(import(node, path, "bench-import").await?);
        node.client.images().remove("bench-import").await?;
        rustix::fs::syncfs(File::open(&volume)?)?;
        theirs.push(tar_x(path, &volume.join("bench-tar-x"))?);
    }
    report.put_ms(&format!("image.{key}"), &ours);
    report.put_ms(&format!("peer.{peer}"), &theirs);
    Ok(())
}

/// Until all of it is on the disk, as an import's is.
fn tar_x(archive: &Path, to: &Path) -> Result<Duration> {
    fs::create_dir(to)?;
    let start = Instant::now();
    let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to).status()?;
    rustix::fs::syncfs(File::open(to)?)?;
    let took = start.elapsed();
    fs::remove_dir_all(to)?;
    if !status.success() {
        bail!("tar ended with {status}");
    }
    Ok(took)
}

async fn export(node: &Node, path: &Path, report: &mut Report) -> Result<()> {
    import(node, path, "bench-export").await?;
    for (format, word) in [(ExportFormat::Oci, "oci"), (ExportFormat::Tar, "tar")] {
        let start = Instant::now();
        let mut body = node.client.images().export("bench-export", format).await?;
        let mut bytes = 0;
        while let Some(piece) = body.try_next().await? {
            bytes += piece.len() as u64;
        }
        // By what goes in: what comes out is packed.
        report.put(
            format!("image.export_{word}_mb_per_s"),
            mb_per_s(fs::metadata(path)?.len(), start.elapsed()),
        );
        report.put(format!("image.export_{word}_mb"), bytes as f64 / 1e6);
    }
    node.client.images().remove("bench-export").await?;
    Ok(())
}

/// Layers of noise become one.
async fn merge(node: &Node, report: &mut Report) -> Result<()> {
    let path = node.data().join("bench-layers.tar");
    archive::layers(MERGED_LAYERS, MERGED_LAYER_BYTES, &path)?;
    let mut samples = Vec::new();
    for _ in 0..RUNS {
        import(node, &path, "bench-merge").await?;
        let start = Instant::now();
        node.client.images().merge("bench-merge", MergeRequest::new("merged")).await?;
        samples.push(start.elapsed());
        for name in ["bench-merge", "bench-merge:merged"] {
            node.client.images().remove(name).await?;
        }
    }
    fs::remove_file(path)?;
    report.put_ms("image.merge_10_layers_300mb", &samples);
    Ok(())
}

/// A hundred sandboxes read all files of one image. What the machine's page cache grows by, beside what one makes it grow.
pub async fn shared(node: &Node, report: &mut Report) -> Result<()> {
    let path = node.data().join("bench-shared.tar");
    archive::over(&root(), SHARED_FILES, SHARED_FILE_BYTES, &path)?;
    import(node, &path, "bench-shared").await?;
    fs::remove_file(&path)?;
    cool(node)?;
    let mut boxes = Vec::new();
    for _ in 0..=SANDBOXES {
        boxes.push(node.client.create(spec(node, "bench-shared")).await?);
    }
    // The shell and what it needs are read once before, by one that is not counted.
    let (warm, boxes) = boxes.split_first().context("no sandbox")?;
    warm.sh("cat /etc/hostname > /dev/null").output().await?.check()?;
    let cold = cached_bytes()?;
    read_all(&boxes[0]).await?;
    let one = cached_bytes()? - cold;
    let others = stream::iter(boxes[1..].iter().map(read_all));
    others.buffer_unordered(4).try_collect::<Vec<()>>().await?;
    let all = cached_bytes()? - cold;
    for sandbox in boxes.iter().chain([warm]) {
        sandbox.stop().await?;
    }
    node.client.images().remove("bench-shared").await?;
    report.put("image.cache_1_mb", one / 1e6);
    report.put("image.cache_100_mb", all / 1e6);
    report.put("image.cache_100_over_1_ratio", all / one);
    Ok(())
}

fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("DSEC_TEST_ROOTFS").unwrap_or_default())
}

fn spec(node: &Node, image: &str) -> SandboxSpec {
    SandboxSpec { image: SandboxSpec::new(image).image, ..node.spec() }
}

async fn read_all(sandbox: &Sandbox) -> Result<()> {
    let out = sandbox.sh("cat /bench/* | wc -c").output().await?.check()?;
    let read: usize = out.stdout_text().trim().parse()?;
    if read != SHARED_FILES * SHARED_FILE_BYTES {
        bail!("{read} bytes were read");
    }
    Ok(())
}

/// What was just written is not what sandboxes read: their pages are of the mounted layer.
fn cool(node: &Node) -> Result<()> {
    for layer in fs::read_dir(node.data().join("volume/layers"))? {
        let Ok(blob) = File::open(layer?.path().join("data.blob")) else { continue };
        blob.sync_all()?;
        rustix::fs::fadvise(&blob, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// File pages of the whole machine, without those of shared memory.
fn cached_bytes() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<f64>().ok()).context("/proc/meminfo")
    };
    Ok((kib("Cached")? - kib("Shmem")?) * 1024.0)
}

/// 10 MB packed over an image of 5 GB.
pub async fn large(node: &Node, report: &mut Report) -> Result<()> {
    let (to, body) = archive::stream_over(&root(), LARGE_FILES, LARGE_FILE_BYTES);
    let start = Instant::now();
    let info = node.client.images().import(ImportQuery::new("bench-large", LayerKind::Base), body).await?;
    to.join().map_err(|_| anyhow::anyhow!("the archive's writer panicked"))??;
    report.put("image.import_5gb_mb_per_s", mb_per_s(info.size_bytes, start.elapsed()));
    let sandbox = node.client.create(spec(node, "bench-large")).await?;
    let mut samples = Vec::new();
    for _ in 0..RUNS {
        sandbox.sh("head -c 10000000 /dev/urandom > /srv/diff").user("root").output().await?.check()?;
        rustix::fs::syncfs(File::open(node.data().join("volume"))?)?;
        let start = Instant::now();
        sandbox.pack_diff(PackRequest::new("bench-large-diff")).await?;
        samples.push(start.elapsed());
        node.client.images().remove("bench-large-diff").await?;
    }
    sandbox.stop().await?;
    node.client.images().remove("bench-large").await?;
    report.put_ms("image.pack_diff_10mb_of_5gb", &samples);
    Ok(())
}
