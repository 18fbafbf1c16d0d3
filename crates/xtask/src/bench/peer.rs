//! OCI runtimes beside ours: `run` of /bin/true on one unpacked root, N times, one after the other.
//!
//! The loop runs in a mount namespace of its own (we start ourselves again under `unshare`), where only the v2 cgroup
//! hierarchy is shown: crun refuses a hybrid layout. The host's mounts are untouched. The bundle asks for no rlimit,
//! because not every root may raise one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Report;
use crate::step;

/// First runs warm the page cache and are not counted.
const WARM_UP_RUNS: usize = 3;

/// Unpacks the tar once; gives the root.
pub fn unpack(scratch: &Path, tar: &Path) -> Result<PathBuf> {
    let rootfs = scratch.join("rootfs");
    if !rootfs.exists() {
        fs::create_dir(&rootfs)?;
        step::run(Command::new("tar").arg("-xpf").arg(tar).arg("-C").arg(&rootfs).arg("--numeric-owner"))?;
    }
    Ok(rootfs)
}

/// Times `runtime run` into `peer.<runtime>.run_true_ms_*`.
pub fn measure(runtime: &str, scratch: &Path, rootfs: &Path, runs: usize, report: &mut Report) -> Result<()> {
    if !step::in_path(runtime) {
        println!("bench: no {runtime} on this machine");
        return Ok(());
    }
    let bundle = scratch.join(format!("bundle-{runtime}"));
    fs::create_dir_all(&bundle)?;
    let spec = spec(rootfs, &base_spec(&bundle)?);
    fs::write(bundle.join("config.json"), format!("{spec:#}"))?;
    // Shown in the new namespace: the v2 hierarchy alone, where the host mounts it beside v1 ones.
    let script = "set -e\nmount --make-rprivate /\n\
                  if [ -d /sys/fs/cgroup/unified ]; then mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup; fi\n\
                  exec \"$@\"\n";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(std::env::current_exe()?);
    command
        .args(["peer-loop", "--runtime", runtime, "--runs", &(runs + WARM_UP_RUNS).to_string(), "--bundle"])
        .arg(&bundle);
    let text = match step::output(&mut command) {
        Ok(text) => text,
        Err(error) => {
            println!("bench: {runtime} does not run here, so it is left out: {error:#}");
            return Ok(());
        }
    };
    let samples = parse_samples(&text)?;
    let counted = samples.get(WARM_UP_RUNS..).unwrap_or_default();
    report.put_samples(&format!("peer.{runtime}.run_true"), "ms", counted);
    Ok(())
}

/// The spec that the runtimes themselves propose.
fn base_spec(bundle: &Path) -> Result<Value> {
    let maker = if step::in_path("runc") { "runc" } else { "crun" };
    step::output(Command::new(maker).arg("spec").current_dir(bundle))?;
    let text = fs::read_to_string(bundle.join("config.json"))?;
    serde_json::from_str(&text).with_context(|| format!("`{maker} spec` wrote no JSON"))
}

/// `base` made to run /bin/true in `rootfs`, with no terminal and no rlimit.
fn spec(rootfs: &Path, base: &Value) -> Value {
    let mut spec = base.clone();
    spec["process"]["args"] = json!(["/bin/true"]);
    spec["process"]["terminal"] = json!(false);
    if let Some(process) = spec["process"].as_object_mut() {
        process.remove("rlimits");
    }
    // Device rules are a BPF program on v2, and crun raises RLIMIT_MEMLOCK to load it. No peer gets them, nor ours.
    if let Some(linux) = spec["linux"].as_object_mut() {
        linux.remove("resources");
    }
    spec["root"] = json!({"path": rootfs, "readonly": true});
    spec
}

/// `peer-loop`: prints the milliseconds of each run, one a line.
pub fn timed_loop(runtime: &str, bundle: &Path, runs: usize) -> Result<()> {
    let state = bundle.join("state");
    for number in 0..runs {
        let name = format!("dsec-bench-{}-{number}", std::process::id());
        let mut command = Command::new(runtime);
        command.arg("--root").arg(&state).args(["run", "--bundle"]).arg(bundle).arg(&name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        let out = command.output().with_context(|| format!("cannot start {runtime}"))?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            let _ =
                Command::new(runtime).arg("--root").arg(&state).args(["delete", "--force", &name]).output();
            // Where the runtime fails early it leaves its empty cgroup.
            let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&name));
            bail!("{runtime} run: {}: {}", out.status, said.trim());
        }
        println!("{ms}");
    }
    Ok(())
}

pub fn parse_samples(text: &str) -> Result<Vec<f64>> {
    text.lines().map(|l| l.trim().parse().with_context(|| format!("not a number: {l:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_runs_true_and_raises_no_limit() {
        let base = json!({"process": {"args": ["sh"], "terminal": true, "rlimits": [{}], "cwd": "/"}, "linux": {"resources": {}, "namespaces": []}, "root": {"path": "rootfs"}});
        let spec = spec(Path::new("/r"), &base);
        assert_eq!(spec["process"], json!({"args": ["/bin/true"], "terminal": false, "cwd": "/"}));
        assert_eq!(spec["root"]["path"], "/r");
        assert_eq!(spec["linux"], json!({"namespaces": []}));
    }

    #[test]
    fn samples_are_numbers() {
        assert_eq!(parse_samples("1.5\n2\n").unwrap(), [1.5, 2.0]);
        assert!(parse_samples("1.5\noops\n").is_err());
    }
}
