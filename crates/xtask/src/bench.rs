//! `cargo xtask bench`: ours and its peers in the same run, on the same root file system.
//!
//! The result is one flat JSON object: `area.what.variant_unit` -> number. Two kinds of sections: *peers*, timed here;
//! and *ours*, every `[[bench]]` target of the workspace, run as a program that prints lines `bench: <key> <number>`
//! (they see DSEC_TEST_ROOTFS and DSEC_AETHER). Percentiles are of all runs; nothing is thrown away.

mod docker;
pub mod peer;
mod stats;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{debian, e2b, image, leak, python, step, stock::Binaries};

#[derive(clap::Args)]
pub struct Args {
    /// Write the numbers here as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Runs of each peer
    #[arg(long, default_value_t = 60)]
    runs: usize,
    /// Only sections whose name holds this: `peer.crun`, or a bench target's name
    #[arg(long, default_value = "")]
    only: String,
}

/// Ours beside its peers: how many times longer they take for a command in a fresh sandbox.
const RATIOS: [(&str, &str, &str); 3] = [
    ("ratio.crun_over_first_exec", "peer.crun.run_true_ms_p50", "create.first_exec_ms_p50"),
    ("ratio.runc_over_first_exec", "peer.runc.run_true_ms_p50", "create.first_exec_ms_p50"),
    ("ratio.docker_over_first_exec", "peer.docker.run_true_ms_p50", "create.first_exec_ms_p50"),
];

/// Key -> number. Keys end in their unit.
#[derive(Default)]
pub struct Report(BTreeMap<String, f64>);

impl Report {
    pub fn put(&mut self, key: impl Into<String>, value: f64) {
        self.0.insert(key.into(), value);
    }

    /// min, p50, p90, p99 and the number of runs.
    fn put_samples(&mut self, key: &str, unit: &str, samples: &[f64]) {
        let Some(summary) = stats::Summary::of(samples) else { return };
        self.put(format!("{key}_{unit}_min"), summary.min);
        self.put(format!("{key}_{unit}_p50"), summary.p50);
        self.put(format!("{key}_{unit}_p90"), summary.p90);
        self.put(format!("{key}_{unit}_p99"), summary.p99);
        self.put(format!("{key}_runs"), samples.len() as f64);
    }

    /// `of / to`, where both were measured.
    fn put_ratio(&mut self, key: &str, of: &str, to: &str) {
        if let (Some(of), Some(to)) = (self.0.get(of).copied(), self.0.get(to).copied())
            && to > 0.0
        {
            self.put(key, of / to);
        }
    }

    fn to_json(&self) -> String {
        let object: serde_json::Map<String, Value> =
            self.0.iter().map(|(k, v)| (k.clone(), Value::from((v * 1000.0).round() / 1000.0))).collect();
        format!("{:#}\n", Value::Object(object))
    }
}

/// Where a run keeps its files; gone when it ends, however it ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Self> {
        let dir = step::root().join(format!("target/{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("xtask: cannot remove {}: {error}", self.0.display());
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    debian::ensure(debian::BENCH)?;
    let before = leak::Snapshot::take();
    let mut report = Report::default();
    report.put("machine.cores_count", std::thread::available_parallelism()?.get() as f64);
    report.put("machine.load_1m_before", load()?);
    let wanted = |name: &str| name.contains(&args.only);
    let targets: Vec<_> = bench_targets()?.into_iter().filter(|t| wanted(&t.name)).collect();
    let peers: Vec<_> = ["peer.crun", "peer.runc", "peer.docker"].into_iter().filter(|n| wanted(n)).collect();
    let doors: Vec<_> = ["doors.python", "doors.e2b"].into_iter().filter(|n| wanted(n)).collect();
    if targets.is_empty() && peers.is_empty() && doors.is_empty() {
        bail!("no section's name holds {:?}", args.only);
    }
    let tar = image::ensure(&image::TEST)?;
    for target in &targets {
        step::timed(&target.name, || ours(target, &tar, &mut report))?;
    }
    for name in doors {
        step::timed(name, || door(name, &tar, &mut report))?;
    }
    if !peers.is_empty() {
        let scratch = Scratch::new("bench")?;
        for name in peers {
            step::timed(name, || match name {
                "peer.docker" => docker::measure(&scratch.0, &tar, args.runs, &mut report),
                _ => {
                    let rootfs = peer::unpack(&scratch.0, &tar)?;
                    peer::measure(
                        name.trim_start_matches("peer."),
                        &scratch.0,
                        &rootfs,
                        args.runs,
                        &mut report,
                    )
                }
            })?;
        }
    }
    RATIOS.iter().for_each(|(key, of, to)| report.put_ratio(key, of, to));
    report.put("machine.load_1m_after", load()?);
    let json = report.to_json();
    if let Some(path) = &args.json {
        fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{json}");
    leak::assert_none_since(&before)
}

/// A `[[bench]]` target of one of our crates.
struct Target {
    package: String,
    name: String,
}

fn bench_targets() -> Result<Vec<Target>> {
    let mut metadata = step::cargo(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let json: Value = serde_json::from_str(&step::output(&mut metadata)?).context("cargo metadata")?;
    Ok(parse_targets(&json))
}

fn parse_targets(metadata: &Value) -> Vec<Target> {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for package in list(&metadata["packages"]) {
        for target in list(&package["targets"]) {
            if list(&target["kind"]).iter().any(|k| k == "bench") {
                let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                found.push(Target { package: text(&package["name"]), name: text(&target["name"]) });
            }
        }
    }
    found
}

/// Builds and runs one bench target, and takes its numbers.
fn ours(target: &Target, rootfs: &Path, report: &mut Report) -> Result<()> {
    let aether = step::build_aether()?;
    let dsec = step::build_dsec()?;
    let mut command =
        step::cargo(["bench", "--profile", "fast", "-p", &target.package, "--bench", &target.name]);
    command.env("DSEC_TEST_ROOTFS", rootfs).env("DSEC_AETHER", aether).env("DSEC_BINARY", dsec);
    let mut count = 0;
    let status = step::tee(command, |line| {
        if let Some((key, value)) = parse_number(line) {
            report.put(key, value);
            count += 1;
        }
    })?;
    if !status.success() {
        bail!("bench target {} of {} failed: {status}", target.name, target.package);
    }
    if count == 0 {
        bail!("bench target {} of {} printed no `bench: <key> <number>`", target.name, target.package);
    }
    Ok(())
}

/// Our API as other programs reach it: a program that prints the same lines as a bench target.
fn door(name: &str, rootfs: &Path, report: &mut Report) -> Result<()> {
    let binaries = Binaries::new(false)?;
    let mut each = |line: &str| {
        if let Some((key, value)) = parse_number(line) {
            report.put(key, value);
        }
    };
    match name {
        "doors.e2b" => e2b::bench(&binaries, rootfs, e2b::VERSIONS, &mut each),
        _ => python::bench(&binaries, rootfs, &mut each),
    }
}

fn parse_number(line: &str) -> Option<(String, f64)> {
    let (key, value) = line.trim().strip_prefix("bench: ")?.rsplit_once(' ')?;
    let value: f64 = value.parse().ok()?;
    (value.is_finite() && !key.trim().is_empty()).then(|| (key.trim().to_owned(), value))
}

fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    text.split(' ').next().and_then(|l| l.parse().ok()).context("cannot read /proc/loadavg")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_number_is_a_key_and_a_finite_value() {
        assert_eq!(parse_number("bench: exec.true_ms_p50 1.25"), Some(("exec.true_ms_p50".into(), 1.25)));
        for no in ["exec 1", "bench: x", "bench: x y", "bench: x NaN", "bench:  3"] {
            assert_eq!(parse_number(no), None, "{no}");
        }
    }

    #[test]
    fn bench_targets_are_found() {
        let metadata = json!({"packages": [{"name": "a", "targets": [
            {"kind": ["lib"], "name": "a"}, {"kind": ["bench"], "name": "create"}]}]});
        let targets = parse_targets(&metadata);
        assert_eq!(
            (targets.len(), targets[0].package.as_str(), targets[0].name.as_str()),
            (1, "a", "create")
        );
    }

    #[test]
    fn the_report_is_flat_json() {
        let mut report = Report::default();
        report.put_samples("peer.x.run", "ms", &[3.0, 1.0, 2.0]);
        let json: Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["peer.x.run_ms_min"], 1.0);
        assert_eq!(json["peer.x.run_ms_p50"], 2.0);
        assert_eq!(json["peer.x.run_runs"], 3.0);
    }
}
