//! The image crate against witnesses: the kernel's EROFS and overlayfs, `fsck.erofs`, GNU tar.
//!
//! Mounts are detached (never attached to a tree) and end with their descriptor, so a failed test leaves none.
//! Files live under /var/tmp: an EROFS image cannot be mounted from tmpfs.

#![allow(clippy::unwrap_used)]

mod archive;
mod catalogue;
mod crash;
mod environment;
mod export;
mod fuzz;
mod hostile;
mod kernel;
mod merge;
mod oci;
mod pull;
mod pull_faults;
mod random;
mod reader;
mod registry;
mod shapes;
mod snapshot;
mod synthetic;

use std::{path::Path, process::Command};

use api::image::{ImportQuery, LayerKind};
use image::import::{Built, Imported};

/// A directory on a real file system.
fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("dsec-image-").tempdir_in("/var/tmp").unwrap()
}

fn query() -> ImportQuery {
    ImportQuery::new("test", LayerKind::Base)
}

/// Whether a program is there; says so where it is not.
fn has(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--help").output().is_ok();
    if !found {
        eprintln!("skipped: {package}");
    }
    found
}

fn import_dir(query: &ImportQuery, source: &Path, scratch: &Path) -> Imported {
    image::import::import_directory(query, &image::Limits::default(), source, scratch).unwrap()
}

fn import(query: &ImportQuery, bytes: &[u8], scratch: &Path) -> Result<Imported, image::Error> {
    image::import::import_archive(query, &image::Limits::default(), bytes, scratch)
}

/// The kernel mounts it and shows what is at `source`, our own reader too; `fsck.erofs` has no complaint.
fn assert_shows(layer: &Built, source: &Path) {
    fsck(layer);
    let mounted = kernel::mount(&layer.meta(), layer.blob().as_deref());
    let expected = snapshot::take(source);
    snapshot::assert_equal(&expected, &snapshot::take(&mounted.path()));
    let read = image::erofs::read::Reader::open(&layer.meta(), layer.blob().as_deref()).unwrap();
    snapshot::assert_equal(&expected, &reader::snapshot(read));
}

fn fsck(layer: &Built) {
    if !has("fsck.erofs", "erofs-utils") {
        return;
    }
    let mut fsck = Command::new("fsck.erofs");
    fsck.arg("--extract");
    if let Some(blob) = layer.blob() {
        fsck.arg(format!("--device={}", blob.display()));
    }
    let output = fsck.arg(layer.meta()).output().unwrap();
    assert!(output.status.success(), "fsck.erofs: {}", String::from_utf8_lossy(&output.stderr));
}

/// GNU tar's archive of `source`.
fn gnu_tar(source: &Path, options: &[&str]) -> Vec<u8> {
    let output = Command::new("tar")
        .args(["--create", "--file=-", "--xattrs", "--xattrs-include=*", "--sort=name"])
        .args(options)
        .arg("-C")
        .arg(source)
        .arg(".")
        .output()
        .unwrap();
    assert!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
