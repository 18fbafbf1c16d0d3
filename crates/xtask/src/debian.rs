//! Debian packages that a step needs: installed by name when they are missing, and said aloud.
//!
//! Invariant: nothing is touched when all are there; `apt-get update` runs only when the lists are missing or too old
//! to find a package.

pub mod sources;

use std::{collections::BTreeSet, process::Command};

use anyhow::{Context, Result};

use crate::step;

/// What the build and the tests need.
pub const CI: &[&str] = &[
    "erofs-utils",
    "btrfs-progs",
    "nftables",
    "iproute2",
    "mmdebstrap",
    "crun",
    "runc",
    "busybox-static",
    "procps",
    "gcc",
    "g++",
    "libc6-dev",
    "pkg-config",
    "util-linux",
    "coreutils",
    "python3",
    "python3-venv",
    "binutils",
    "docker-registry",
    "skopeo",
    "strace",
];

/// What makes a lab machine; QEMU and its kernel are unpacked, not installed.
pub const LAB: &[&str] = &["busybox-static", "kmod", "xz-utils", "debian-archive-keyring"];

/// What the Python package is built and tested with.
pub const PYTHON: &[&str] =
    &["gcc", "libc6-dev", "binutils", "btrfs-progs", "nftables", "iproute2", "python3", "python3-venv"];

/// What a node needs to run.
pub const NODE: &[&str] = &["gcc", "libc6-dev", "btrfs-progs", "nftables", "iproute2"];

/// What building an image needs.
pub const IMAGE: &[&str] = &["mmdebstrap", "util-linux", "coreutils"];

/// What the demo needs on the host.
pub const DEMO: &[&str] = &[
    "gcc",
    "libc6-dev",
    "mmdebstrap",
    "btrfs-progs",
    "nftables",
    "iproute2",
    "procps",
    "util-linux",
    "tar",
    "python3",
    "python3-pip",
];

/// What a node and the stock packages of foreign APIs need on the host.
pub const STOCK: &[&str] = &["btrfs-progs", "nftables", "iproute2", "python3", "python3-venv", "python3-pip"];

/// What the peers of the benchmark need.
pub const BENCH: &[&str] =
    &["crun", "runc", "util-linux", "tar", "mmdebstrap", "btrfs-progs", "nftables", "iproute2"];

/// Installs those of `packages` that are missing.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let listed = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Abbrev}\t${Package}\n"]).output();
    let listed = listed.context("no dpkg-query: this needs Debian or a system made from it")?;
    let missing = missing(&String::from_utf8_lossy(&listed.stdout), packages);
    if missing.is_empty() {
        println!("debian: all {} packages are installed", packages.len());
        return Ok(());
    }
    println!("debian: installing {}", missing.join(" "));
    if has_lists() && install(&missing).is_ok() {
        return Ok(());
    }
    println!("debian: apt-get update");
    step::run(apt().arg("update"))
        .context("apt-get update: is an apt mirror reachable, and are you root?")?;
    install(&missing)
}

fn install(packages: &[&str]) -> Result<()> {
    step::run(apt().args(["install", "-y", "--no-install-recommends"]).args(packages))
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-o", "Dpkg::Use-Pty=0"]);
    apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(std::process::Stdio::null());
    apt
}

/// Whether apt has any package list at all (a fresh image of Debian has none).
fn has_lists() -> bool {
    let Ok(entries) = std::fs::read_dir("/var/lib/apt/lists") else { return false };
    entries.flatten().any(|e| e.file_name().to_string_lossy().contains("_Packages"))
}

/// Those of `packages` that dpkg does not list as installed.
fn missing<'a>(dpkg: &str, packages: &[&'a str]) -> Vec<&'a str> {
    let here: BTreeSet<&str> = dpkg
        .lines()
        .filter_map(|l| l.split_once('\t'))
        .filter(|(s, _)| s.starts_with("ii"))
        .map(|(_, p)| p)
        .collect();
    packages.iter().copied().filter(|p| !here.contains(p)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_installed_package_counts() {
        let dpkg = "ii \tgcc\nrc \tcrun\nun \trunc\nii \tlibc6-dev\n";
        assert_eq!(
            missing(dpkg, &["gcc", "crun", "runc", "libc6-dev", "nftables"]),
            ["crun", "runc", "nftables"]
        );
    }
}
