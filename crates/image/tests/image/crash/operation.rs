//! What is killed: each operation of the catalogue, on a small catalogue that has what it needs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use api::{
    Code, Result,
    image::{ImageInfo, ImportQuery, LayerKind, MergeRequest},
    pull::PullRequest,
    snapshot::PackRequest,
};
use image::{Arrived, Catalogue, Under};

use crate::{archive::Tar, oci::Layout, pull, registry::Registry};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Open,
    ImportTar,
    ImportDirectory,
    ImportImage,
    Replace,
    Merge,
    Pack,
    Adopt,
    Remove,
    RemoveByDigest,
    Sweep,
    Pull,
    /// All blobs are there: the thread that fetches changes nothing, so all steps are of the one that names.
    PullOn,
}

use Operation::*;

const ALL: [Operation; 13] = [
    Open,
    ImportTar,
    ImportDirectory,
    ImportImage,
    Replace,
    Merge,
    Pack,
    Adopt,
    Remove,
    RemoveByDigest,
    Sweep,
    Pull,
    PullOn,
];

/// Where it happens.
pub struct Stage<'a> {
    /// Of the catalogue, and beside it what the operation reads.
    pub dir: &'a Path,
    /// A repository in the registry that has the image of [`registry`].
    pub registry: &'a str,
}

/// One with the image that is pulled.
pub fn registry() -> Registry {
    Registry::with(&Layout::new(pull::base()), "1")
}

fn named(name: &str, version: &str) -> ImportQuery {
    ImportQuery { version: version.into(), ..ImportQuery::new(name, LayerKind::Base) }
}

/// A layer of one file; equal words make equal layers.
fn tar(word: &str) -> Vec<u8> {
    Tar::new().dir("d/").file("d/f", word).file("g", &word.repeat(9000)).hardlink("h", "g").bytes()
}

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), "of a directory").unwrap();
    fs::hard_link(dir.join("d/f"), dir.join("h")).unwrap();
    fs::write(dir.join("large"), pull::noise(2 << 20, 7)).unwrap();
    fs::set_permissions(dir.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("d/f", dir.join("s")).unwrap();
}

fn catalogue(dir: &Path) -> Result<Catalogue> {
    Catalogue::open(&dir.join("catalogue"))
}

impl Operation {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn named(name: &str) -> Self {
        ALL.into_iter().find(|operation| operation.name() == name).unwrap()
    }

    /// What is there before: always an image that nobody touches.
    pub fn prepare(self, dir: &Path) {
        fs::create_dir(dir).unwrap();
        tree(&dir.join("tree"));
        if self == Open {
            return;
        }
        let catalogue = catalogue(dir).unwrap();
        let import = |name: &str, version: &str, bytes: &[u8]| {
            catalogue.import_reader(&named(name, version), bytes).unwrap()
        };
        import("bystander", "1", &tar("bystander"));
        match self {
            Replace => drop(import("a", "1", &tar("old"))),
            Merge => drop(import("a", "1", &Layout::new(pull::base()).bytes())),
            Pack => drop(import("a", "1", &tar("below"))),
            Remove => {
                // Its lower layer is another's, too, and both are known by what they were made of.
                import("a", "1", &Layout::new(pull::base()).bytes());
                import("b", "1", &Layout::new(pull::base()[..1].to_vec()).bytes());
            }
            RemoveByDigest => {
                import("a", "1", &tar("same"));
                import("a", "2", &tar("same"));
                import("c", "1", &tar("same"));
            }
            Sweep => {
                for word in ["one", "two", "three"] {
                    import("a", "1", &tar(word));
                }
            }
            Adopt => {
                let other = Catalogue::open(&dir.join("other")).unwrap();
                other.import_reader(&named("adopted", "1"), &tar("adopted")[..]).unwrap();
            }
            PullOn => {
                let blobs = Layout::new(pull::base()).blobs;
                for (hex, bytes) in blobs.iter().filter(|(_, bytes)| bytes.len() > 100_000) {
                    fs::write(dir.join("catalogue/blobs").join(hex), bytes).unwrap();
                }
            }
            _ => {}
        }
    }

    /// Does it, or does again what was cut short.
    pub fn act(self, stage: &Stage<'_>) -> Result<()> {
        let catalogue = catalogue(stage.dir)?;
        match self {
            Open => Ok(()),
            ImportTar => catalogue.import_reader(&named("a", "1"), &tar("new")[..]).map(drop),
            ImportDirectory => catalogue.import_dir(&named("a", "1"), &stage.dir.join("tree")).map(drop),
            ImportImage => {
                let bytes = Layout::new(pull::base()).bytes();
                catalogue.import_reader(&named("a", "1"), &bytes[..]).map(drop)
            }
            Replace => catalogue.import_reader(&named("a", "1"), &tar("new")[..]).map(drop),
            Merge => merge(&catalogue),
            Pack => pack(&catalogue, &stage.dir.join("tree")),
            Adopt => adopt(&catalogue, &stage.dir.join("other")).map(drop),
            Remove => unless_gone(catalogue.remove("a:1", &|_| false)),
            RemoveByDigest => match catalogue.list().iter().find(|info| info.name != "bystander") {
                Some(info) => catalogue.remove(&info.digest, &|_| false),
                None => Ok(()),
            },
            Sweep => catalogue.sweep(&|_| false).map(drop),
            Pull | PullOn => {
                let request = PullRequest {
                    name: Some("a".into()),
                    ..PullRequest::new(format!("{}:1", stage.registry))
                };
                pull::pull(&catalogue, &request).map(drop)
            }
        }
    }
}

/// A merge that is there already is not done again, which its error says.
fn merge(catalogue: &Catalogue) -> Result<()> {
    let request = MergeRequest { version: "2".into(), threshold_bytes: u64::MAX };
    match catalogue.merge("a:1", &request) {
        Err(error) if error.code == Code::AlreadyExists => Ok(()),
        done => done.map(drop),
    }
}

fn pack(catalogue: &Catalogue, upper: &Path) -> Result<()> {
    let image = catalogue.inspect("a:1")?;
    let under = Under { layers: image.layers, config: image.config, ..Under::default() };
    catalogue.pack(&PackRequest::new("packed"), upper, under).map(drop)
}

/// As the node does with what it has fetched from a store.
fn adopt(catalogue: &Catalogue, other: &Path) -> Result<ImageInfo> {
    let other = Catalogue::open(other)?;
    let image = other.inspect("adopted:1")?;
    let scratch = catalogue.scratch()?;
    let mut arrived = Vec::new();
    for digest in image.layers.iter().filter(|digest| catalogue.layer(digest).is_none()) {
        let (manifest, files) = other.layer(digest).unwrap();
        let dir = scratch.path().join("arrived");
        fs::create_dir(&dir).unwrap();
        fs::copy(&files.meta, dir.join(Catalogue::FILES.0)).unwrap();
        fs::copy(files.blob.unwrap(), dir.join(Catalogue::FILES.1)).unwrap();
        arrived.push(Arrived { manifest, dir });
    }
    catalogue.adopt(&image, &arrived, &scratch)
}

fn unless_gone(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.code == Code::NotFound => Ok(()),
        done => done,
    }
}
