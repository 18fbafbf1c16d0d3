//! upgrade: a toolkit of 10 MB gets a new version under N workspaces. Composed, one layer is imported and the N environments
//! follow it. The monolithic way, each workspace is an image with the toolkit inside, so N images are made anew. Both end
//! when a sandbox of the last workspace has read the new version.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use libdsec::{EnvironmentRequest, ImportQuery, LayerKind, SandboxSpec};

use crate::{
    node::{IMAGE, Node},
    report::Report,
};

const TOOLKIT_BYTES: usize = 10_000_000;
const WORKSPACE_BYTES: usize = 100_000;
const COMPOSED: [usize; 3] = [10, 100, 1000];
const MONOLITHS: [usize; 2] = [10, 100];
const AT_ONCE: usize = 2;

pub async fn measure(node: &Node, report: &mut Report) -> Result<()> {
    let mut version = 1;
    import(node, "up-tool", LayerKind::Toolkit, &[tool(version)?]).await?;
    let mut made = 0;
    for count in COMPOSED {
        stream::iter(made..count)
            .map(|n| Ok(compose(node, n)))
            .try_buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        made = count;
        version += 1;
        let (ms, mb) = timed(node, async || {
            import(node, "up-tool", LayerKind::Toolkit, &[tool(version)?]).await?;
            see(node, SandboxSpec::new(format!("up-env-{}", count - 1)), version).await
        })
        .await?;
        report.put(format!("upgrade.composed_{count}_ms"), ms);
        report.put(format!("upgrade.composed_{count}_mb"), mb);
    }
    for count in MONOLITHS {
        monoliths(node, count, version).await?;
        version += 1;
        let (ms, mb) = timed(node, async || {
            monoliths(node, count, version).await?;
            let workspace = format!("up-mono-{}", count - 1);
            see(node, SandboxSpec { workspaces: vec![workspace], ..SandboxSpec::new(IMAGE) }, version).await
        })
        .await?;
        report.put(format!("upgrade.monolith_{count}_ms"), ms);
        report.put(format!("upgrade.monolith_{count}_mb"), mb);
    }
    report.put_ratio(
        "ratio.upgrade_monolith_over_composed_100",
        "upgrade.monolith_100_ms",
        "upgrade.composed_100_ms",
    );
    Ok(())
}

/// A path and its bytes.
type Entry = (String, Vec<u8>);

fn noise(bytes: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut noise = vec![0; bytes];
    fs::File::open("/dev/urandom")?.read_exact(&mut noise)?;
    Ok(noise)
}

/// The file names its version.
fn tool(version: u32) -> Result<Entry> {
    Ok((format!("opt/tool/{version}"), noise(TOOLKIT_BYTES)?))
}

async fn import(node: &Node, name: &str, kind: LayerKind, entries: &[Entry]) -> Result<()> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes.as_slice())?;
    }
    let bytes = tar.into_inner()?;
    let body = stream::iter([Ok(bytes.into())]).boxed();
    node.client.images().import(ImportQuery::new(name, kind), body).await?;
    Ok(())
}

async fn compose(node: &Node, n: usize) -> Result<()> {
    let workspace = format!("up-work-{n}");
    import(node, &workspace, LayerKind::Workspace, &[(format!("srv/{n}"), noise(WORKSPACE_BYTES)?)]).await?;
    let request = EnvironmentRequest {
        workspaces: vec![workspace],
        toolkits: vec!["up-tool".into()],
        follow: vec![LayerKind::Toolkit],
        ..EnvironmentRequest::new(format!("up-env-{n}"), IMAGE)
    };
    node.client.environments().create(request).await?;
    Ok(())
}

/// Each has the same toolkit, as images that were built one by one have.
async fn monoliths(node: &Node, count: usize, version: u32) -> Result<()> {
    let tool = tool(version)?;
    let make = |n: usize| {
        let entries = noise(WORKSPACE_BYTES).map(|noise| [(format!("srv/{n}"), noise), tool.clone()]);
        async move { import(node, &format!("up-mono-{n}"), LayerKind::Workspace, &entries?).await }
    };
    stream::iter(0..count).map(|n| Ok(make(n))).try_buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn see(node: &Node, spec: SandboxSpec, version: u32) -> Result<()> {
    let sandbox = node.client.create(spec).await?;
    let seen = sandbox.exec(["test", "-s", &format!("/opt/tool/{version}")]).output().await?;
    sandbox.stop().await?;
    ensure!(seen.success(), "version {version} is not there");
    Ok(())
}

/// How long the work took in milliseconds, and how many megabytes of layers are there afterwards that were not before.
async fn timed(node: &Node, work: impl AsyncFnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let layers = node.data().join("volume/layers");
    let before = listed(&layers)?;
    let start = Instant::now();
    work().await?;
    let took = start.elapsed();
    let new = listed(&layers)?.into_iter().filter(|name| !before.contains(name));
    let bytes: f64 = new.map(|name| size(&layers.join(name))).sum::<Result<f64>>()?;
    Ok((took.as_secs_f64() * 1e3, bytes / 1e6))
}

fn listed(layers: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(layers).context("the layers")?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

fn size(layer: &Path) -> Result<f64> {
    let files = fs::read_dir(layer)?;
    files.map(|file| Ok(file?.metadata()?.len() as f64)).sum()
}
