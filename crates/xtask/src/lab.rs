//! `cargo xtask lab -- COMMAND`: runs a command in a virtual machine over this machine's own files, on Debian's backported
//! kernel and with cgroup v2 alone: what this kernel cannot show.
//!
//! QEMU emulates (no KVM is asked for), so it runs everywhere and is some five times slower. The guest sees this
//! machine's root file system read-only with a tmpfs above, so it finds the build of this tree and leaves nothing of its
//! own. Invariants: nothing is installed but small tools; QEMU and the kernel are unpacked under `target/lab`; the
//! machine is over when the command is, or when its time is up.

mod guest;
mod material;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{debian, image, step};

/// What the largest test asks a node for: a hundred sandboxes of the default size.
const MEMORY_MIB: u32 = 14 * 1024;
/// On top of the guest's, so that the machine itself stays well.
const SPARE_MIB: u64 = 3 * 1024;

#[derive(clap::Args)]
pub struct Args {
    /// Memory of the guest, in MiB
    #[arg(long, default_value_t = MEMORY_MIB)]
    memory_mib: u32,
    /// Seconds after which the machine is ended
    #[arg(long, default_value_t = 600)]
    timeout_s: u64,
    /// A shell command line, run as root at the top of this repository [default: the host tests that CI runs there]
    #[arg(last = true)]
    command: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.command.is_empty() {
        let rootfs = image::ensure(&image::TEST)?;
        step::build_dsec()?;
        return test(&step::build_aether()?, &rootfs, |_| {});
    }
    debian::ensure(debian::LAB)?;
    let job = guest::Job {
        command: args.command.join(" "),
        memory_mib: args.memory_mib,
        time_max: Duration::from_secs(args.timeout_s),
    };
    let code = guest::run(&material::ensure()?, &job, |_| {})?;
    if code != 0 {
        bail!("the command ended with {code}");
    }
    Ok(())
}

/// Host tests that must hold on another kernel and another layout of cgroups.
const TESTS: &[&str] = &["lifecycle", "hostile", "network", "restart"];
/// They take five minutes here.
const TESTS_TIME_MAX: Duration = Duration::from_secs(1200);

/// Runs [`TESTS`] in the guest; gives each of its lines to `each`.
pub fn test(aether: &std::path::Path, rootfs: &std::path::Path, mut each: impl FnMut(&str)) -> Result<()> {
    debian::ensure(debian::LAB)?;
    let free = available_mib()?;
    if free < u64::from(MEMORY_MIB) + SPARE_MIB {
        each(&format!("skipped: memory for a lab machine ({free} MiB are free)"));
        return Ok(());
    }
    let mut command = format!(
        "export DSEC_BINARY={:?} DSEC_AETHER={aether:?} DSEC_TEST_ROOTFS={rootfs:?}; cd crates/testkit; all=0; ",
        step::built_dsec()?
    );
    for test in executables()? {
        command += &format!("{test:?} || all=1; ");
    }
    command += "exit $all";
    let job = guest::Job { command, memory_mib: MEMORY_MIB, time_max: TESTS_TIME_MAX };
    match guest::run(&material::ensure()?, &job, each)? {
        0 => Ok(()),
        code => bail!("the tests in the lab machine ended with {code}"),
    }
}

/// The built tests, in order.
fn executables() -> Result<Vec<PathBuf>> {
    let mut build = step::cargo(["test", "-p", "testkit", "--profile", "fast", "--no-run"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    TESTS.iter().for_each(|name| {
        build.args(["--test", name]);
    });
    let said = step::output(&mut build)?;
    let messages: Vec<serde_json::Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |name: &&str| {
        let found = messages.iter().find(|m| m["target"]["name"] == **name && m["executable"].is_string());
        let path = found.and_then(|m| m["executable"].as_str());
        path.map(PathBuf::from).with_context(|| format!("cargo built no test {name}"))
    };
    TESTS.iter().map(of).collect()
}

fn available_mib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    Ok(kib.and_then(|k| k.trim().parse::<u64>().ok()).context("no MemAvailable in /proc/meminfo")? / 1024)
}
