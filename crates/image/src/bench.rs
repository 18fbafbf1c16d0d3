//! The cost of an import, for `cargo xtask bench`; the peer is `tar x` on the same disk.

use std::{fs, io, path::Path, process::Command, time::Instant};

use api::image::{ImportQuery, LayerKind};

use crate::catalogue::Catalogue;

/// Milliseconds of one run each, and sizes.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ImportCost {
    pub archive_bytes: u64,
    pub layer_bytes: u64,
    pub files: u64,
    /// Without the wait for the disk.
    pub build_ms: f64,
    /// Through the catalogue: with fsync, published.
    pub import_ms: f64,
    pub tar_x_ms: f64,
    /// One answer of `Catalogue::resolve`, the mean of many.
    pub resolve_us: f64,
}

/// Imports the tar at `archive` and unpacks it with `tar x`, both under `scratch`, which is left as it was.
pub fn import_cost(archive: &Path, scratch: &Path) -> io::Result<ImportCost> {
    let scratch = scratch.join(format!("import-cost-{}", uuid::Uuid::now_v7()));
    fs::create_dir(&scratch)?;
    let cost = measure(archive, &scratch);
    fs::remove_dir_all(&scratch)?;
    cost
}

fn measure(archive: &Path, scratch: &Path) -> io::Result<ImportCost> {
    let query = ImportQuery::new("bench", LayerKind::Base);
    let build = scratch.join("build");
    fs::create_dir(&build)?;
    // Once for the page cache.
    io::copy(&mut fs::File::open(archive)?, &mut io::sink())?;
    let (build_ms, built) = timed(|| {
        let source = fs::File::open(archive)?;
        crate::import::import_archive(&query, &crate::Limits::default(), source, &build)
            .map_err(io::Error::other)
    })?;
    drop(built);
    let catalogue = Catalogue::open(&scratch.join("catalogue")).map_err(io::Error::other)?;
    let (import_ms, info) =
        timed(|| catalogue.import_reader(&query, fs::File::open(archive)?).map_err(io::Error::other))?;
    const ROUNDS: u32 = 100_000;
    let (resolve_ms, ()) = timed(|| {
        (0..ROUNDS).try_for_each(|_| catalogue.resolve("bench", None).map(drop).map_err(io::Error::other))
    })?;
    let tree = scratch.join("tree");
    fs::create_dir(&tree)?;
    let (tar_x_ms, status) =
        timed(|| Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&tree).status())?;
    if !status.success() {
        return Err(io::Error::other("tar failed"));
    }
    Ok(ImportCost {
        archive_bytes: fs::metadata(archive)?.len(),
        layer_bytes: info.size_bytes,
        files: info.files,
        build_ms,
        import_ms,
        tar_x_ms,
        resolve_us: resolve_ms * 1000.0 / f64::from(ROUNDS),
    })
}

fn timed<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<(f64, T)> {
    let start = Instant::now();
    let value = work()?;
    Ok((start.elapsed().as_secs_f64() * 1000.0, value))
}
