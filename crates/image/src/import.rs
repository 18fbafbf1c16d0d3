//! From a directory or an archive to EROFS layers in a scratch directory; the catalogue publishes them.
//!
//! ```text
//! bytes -> gzip | zstd | plain -> bound on bytes -> tar reader -> one layer
//!                                              \-> spool on disk, if it begins like an image -> a layer for each of its layers
//! ```
//! Invariant: an error leaves only files in the scratch directory, which its owner removes.

mod archive;
pub(crate) mod decompress;
pub(crate) mod directory;
pub(crate) mod document;
pub(crate) mod oci;
pub(crate) mod spool;
pub(crate) mod stack;

use std::{
    collections::BTreeMap,
    io::Read,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use api::image::{ImageConfig, ImportFormat, ImportQuery};

use crate::{
    erofs::{Attributes, Limits, Summary, Writer},
    error::{Error, Result, show},
};
use archive::Feeder;
use directory::Verdict;

/// A layer in the scratch directory, or one that was published before.
#[derive(Debug)]
pub struct Built {
    pub dir: PathBuf,
    pub summary: Summary,
    pub(crate) origin: Origin,
}

/// Where a layer came from, as far as the catalogue must know.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Made of a directory or a plain tar.
    Tree,
    /// Made of a layer of an image: what to remember, so that it is not made again.
    Image(Trace),
    /// Published already.
    Known,
}

impl Built {
    pub fn meta(&self) -> PathBuf {
        self.dir.join(META)
    }
    pub fn blob(&self) -> Option<PathBuf> {
        (self.summary.blob_bytes > 0).then(|| self.dir.join(BLOB))
    }
    /// Whether it is published already.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.origin, Origin::Known)
    }
}

/// The image of a layer's tree.
pub const META: &str = "meta.erofs";
/// Its files' bytes; absent where there are none.
pub const BLOB: &str = "data.blob";

/// What an import made, lowest layer first.
#[derive(Debug)]
pub struct Imported {
    pub layers: Vec<Built>,
    pub config: ImageConfig,
}

impl Imported {
    pub fn only(layers: Vec<Built>, config: ImageConfig) -> Self {
        Self { layers, config }
    }
}

/// How a layer of an image is found again.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Over all that decides its bytes.
    pub key: String,
    /// A file for [`crate::erofs::Below::follow`].
    pub path: PathBuf,
}

/// Imports the tree under `source` as one layer.
pub fn import_directory(
    query: &ImportQuery,
    limits: &Limits,
    source: &Path,
    scratch: &Path,
) -> Result<Imported> {
    let mut layer = Layer::create(scratch, 0, limits)?;
    let options = Options::of(query)?;
    options.prepare(&mut layer.writer)?;
    directory::walk(source, &options, &mut layer.writer, &mut directory::all)?;
    let config = config_of(query, ImageConfig::default())?;
    Ok(Imported::only(vec![layer.finish()?], config))
}

/// Makes one layer of what an overlay's upper directory holds, its marks of what is removed below included. `judge` is
/// asked of all but those marks.
pub fn import_upper(
    limits: &Limits,
    upper: &Path,
    scratch: &Path,
    judge: &mut directory::Judge,
) -> Result<Built> {
    let mut layer = Layer::create(scratch, 0, limits)?;
    let mut judge = |path: &[u8], metadata: &std::fs::Metadata| {
        let kind = metadata.file_type();
        if kind.is_char_device() && metadata.rdev() == 0 {
            return Ok(Verdict::Whiteout);
        }
        match judge(path, metadata)? {
            Verdict::Keep if kind.is_char_device() || kind.is_block_device() => {
                Err(Error::refused(format!("/{}: a device cannot be in a layer", show(path))))
            }
            // Nobody listens at it any more.
            Verdict::Keep if kind.is_socket() => Ok(Verdict::LeaveOut),
            verdict => Ok(verdict),
        }
    };
    directory::walk(upper, &Options::none(), &mut layer.writer, &mut judge)?;
    layer.finish()
}

/// Imports an archive: one layer of a plain tar, or one for each layer of an image.
pub fn import_archive(
    query: &ImportQuery,
    limits: &Limits,
    source: impl Read,
    scratch: &Path,
) -> Result<Imported> {
    let mut stream = decompress::open(source, limits.bytes_max)?;
    let options = Options::of(query)?;
    let as_image = match query.format {
        ImportFormat::Tar => false,
        ImportFormat::OciArchive => true,
        ImportFormat::Auto => spool::looks_like_image(&mut stream)?,
    };
    if !as_image {
        let suspect = (query.format == ImportFormat::Auto).then(archive::Suspect::default);
        let layer = plain(stream, suspect, &options, limits, scratch)?;
        return Ok(Imported::only(vec![layer], config_of(query, ImageConfig::default())?));
    }
    let spool = spool::Spool::fill(stream, scratch, limits)?;
    match oci::find(&spool)? {
        Some(image) => {
            let config = config_of(query, image.config.clone())?;
            let mut stack = stack::Stack { options: &options, limits, scratch, known: &stack::NothingKnown };
            Ok(Imported { layers: stack.build(&mut &spool, &image)?, config })
        }
        None if query.format == ImportFormat::Auto => {
            let layer = plain(spool.reader(), None, &options, limits, scratch)?;
            Ok(Imported::only(vec![layer], config_of(query, ImageConfig::default())?))
        }
        None => Err(Error::refused("the archive holds no image: neither `index.json` nor `manifest.json`")),
    }
}

fn plain(
    stream: impl Read,
    suspect: Option<archive::Suspect>,
    options: &Options,
    limits: &Limits,
    scratch: &Path,
) -> Result<Built> {
    let mut layer = Layer::create(scratch, 0, limits)?;
    options.prepare(&mut layer.writer)?;
    Feeder { options, writer: &mut layer.writer, whiteouts: None, suspect }.feed(stream)?;
    layer.finish()
}

/// A layer being written.
pub(crate) struct Layer {
    dir: PathBuf,
    pub(crate) writer: Writer,
}

impl Layer {
    pub(crate) fn create(scratch: &Path, number: usize, limits: &Limits) -> Result<Self> {
        let dir = scratch.join(number.to_string());
        std::fs::create_dir(&dir).map_err(Error::disk("create a layer's directory"))?;
        let writer = Writer::create(&dir.join(META), &dir.join(BLOB), limits)?;
        Ok(Self { dir, writer })
    }

    pub(crate) fn finish(self) -> Result<Built> {
        let (summary, _) = self.writer.finish()?;
        Ok(Built { dir: self.dir, summary, origin: Origin::Tree })
    }
}

/// What the caller wants done to every entry.
pub(crate) struct Options {
    /// Without a slash at either end; empty for none.
    prefix: Vec<u8>,
    owner: Option<(u32, u32)>,
}

impl Options {
    fn none() -> Self {
        Self { prefix: Vec::new(), owner: None }
    }

    pub(crate) fn of(query: &ImportQuery) -> Result<Self> {
        query.validate().map_err(|e| Error::refused(e.message))?;
        let prefix = query.prefix.as_deref().unwrap_or_default();
        let parts: Vec<_> = prefix.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let owner = query.owner.as_deref().and_then(|owner| {
            let (uid, gid) = owner.split_once(':')?;
            Some((uid.parse().ok()?, gid.parse().ok()?))
        });
        Ok(Self { prefix: parts.join("/").into_bytes(), owner })
    }

    fn place(&self, path: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() { path.to_vec() } else { [&self.prefix, path].join(&b'/') }
    }

    fn owned(&self, uid: u32, gid: u32) -> (u32, u32) {
        self.owner.unwrap_or((uid, gid))
    }

    /// Makes the prefix's directories. In a merged directory overlayfs shows the top layer's attributes, so the way
    /// to the prefix must look as it does in any base: `/tmp` stays open to all, a home belongs to its user.
    fn prepare(&self, writer: &mut Writer) -> Result<()> {
        let ends: Vec<usize> = (0..self.prefix.len()).filter(|at| self.prefix[*at] == b'/').collect();
        for (depth, end) in ends.into_iter().chain([self.prefix.len()]).enumerate() {
            let path = &self.prefix[..end];
            let is_prefix = end == self.prefix.len();
            let mut attributes = Attributes::of_parent();
            if depth > 0 || is_prefix {
                (attributes.uid, attributes.gid) = self.owned(0, 0);
            }
            match path {
                b"" => continue,
                b"tmp" | b"var/tmp" => {
                    attributes = Attributes { mode: 0o1777, ..Attributes::of_parent() };
                }
                b"root" => attributes = Attributes { mode: 0o700, ..Attributes::of_parent() },
                b"var" | b"usr" | b"usr/local" | b"usr/lib" | b"var/lib" => {
                    attributes = Attributes::of_parent()
                }
                _ => {}
            }
            writer.tree().put_directory(path, attributes)?;
        }
        if let Some((uid, gid)) = self.owner {
            writer.tree().set_owner_of_parents(uid, gid);
        }
        Ok(())
    }
}

/// The image's config with the query's wishes over it.
fn config_of(query: &ImportQuery, mut config: ImageConfig) -> Result<ImageConfig> {
    config.env.extend(env_of(query.env.as_deref().unwrap_or_default())?);
    config.workdir = query.workdir.clone().or(config.workdir);
    config.user = query.user.clone().or(config.user);
    Ok(config)
}

fn env_of(lines: &str) -> Result<BTreeMap<String, String>> {
    let pair = |line: &str| match line.split_once('=') {
        Some((key, value)) if !key.is_empty() && !line.contains('\0') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(Error::refused("env: expected lines of `KEY=value`")),
    };
    lines.lines().filter(|line| !line.is_empty()).map(pair).collect()
}
