//! An image archive on disk: its parts come in any order, so it is kept whole until it can be read in the right one.
//!
//! Invariants: the spool file has no name once it is open, so a crash leaves nothing; the index is bounded; a part
//! is found by name and is never written anywhere under that name.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use sha2::{Digest, Sha256};

use super::decompress::Stream;
use crate::{
    Limits,
    error::{Error, Result, show},
    tar::{TarEntry, TarKind, TarReader},
};

/// An image has a few hundred parts. What has more is a plain tar that began like an image.
const PARTS_MAX: usize = 65_536;
const PART_NAME_BYTES_MAX: usize = 512;
/// Manifests and configs.
const DOCUMENT_BYTES_MAX: u64 = 8 << 20;
const LINK_HOPS_MAX: usize = 8;

/// Whether the first entry's name is one that image archives begin with.
pub fn looks_like_image(stream: &mut Stream<'_>) -> Result<bool> {
    let mut tar = TarReader::new(stream.peek()?);
    loop {
        // Trouble of any kind will be met again, and told, by whoever reads in earnest.
        let Ok(Some(entry)) = tar.next_entry() else { return Ok(false) };
        let name = normal(&entry.path);
        if !name.is_empty() {
            return Ok(is_of_image(&name));
        }
    }
}

fn is_of_image(name: &[u8]) -> bool {
    let first = name.split(|b| *b == b'/').next().unwrap_or_default();
    let stem = [&b".json"[..], b".tar"].iter().find_map(|end| first.strip_suffix(*end)).unwrap_or(first);
    let is_hash = stem.len() == 64 && stem.iter().all(u8::is_ascii_hexdigit);
    is_hash || matches!(first, b"blobs" | b"index.json" | b"manifest.json" | b"oci-layout" | b"repositories")
}

/// Where a part is.
#[derive(Debug, Clone)]
enum Part {
    Bytes { offset: u64, size: u64 },
    Link(Vec<u8>),
}

pub struct Spool {
    file: File,
    size: u64,
    parts: HashMap<Vec<u8>, Part>,
}

impl Spool {
    /// Copies the whole stream to a nameless file in `scratch`, noting where its parts are.
    pub fn fill(stream: impl Read, scratch: &Path, limits: &Limits) -> Result<Self> {
        let path = scratch.join("spool");
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(Error::disk("create the spool"))?;
        std::fs::remove_file(&path).map_err(Error::disk("unlink the spool"))?;
        let tee = Tee { stream, file: io::BufWriter::with_capacity(1 << 20, &file), size: 0 };
        let mut tar = TarReader::new(tee);
        let mut parts = HashMap::new();
        let mut entries = 0;
        while let Some(entry) = tar.next_entry()? {
            entries += 1;
            if entries > limits.entries_max {
                return Err(Error::refused(format!("more than {} entries", limits.entries_max)));
            }
            note(&mut parts, entry);
        }
        let mut tee = tar.into_rest();
        io::copy(&mut tee, &mut io::sink()).map_err(Error::of_reader)?;
        tee.file.flush().map_err(Error::disk("write the spool"))?;
        let size = tee.size;
        drop(tee);
        Ok(Self { file, size, parts })
    }

    /// The archive from its beginning.
    pub fn reader(&self) -> impl Read + '_ {
        io::BufReader::with_capacity(256 << 10, Section { file: &self.file, at: 0, left: self.size })
    }

    /// A part, following links between parts.
    pub fn part(&self, name: &[u8]) -> Option<Section<'_>> {
        let mut name = name.to_vec();
        for _ in 0..LINK_HOPS_MAX {
            match self.parts.get(&name)? {
                Part::Bytes { offset, size } => {
                    return Some(Section { file: &self.file, at: *offset, left: *size });
                }
                Part::Link(target) => name.clone_from(target),
            }
        }
        None
    }

    /// A small part as a whole, checked against `sha256` where it is given.
    pub fn document(&self, name: &[u8], sha256: Option<&str>) -> Result<Vec<u8>> {
        let mut part =
            self.part(name).ok_or_else(|| Error::refused(format!("the image lacks {}", show(name))))?;
        if part.left > DOCUMENT_BYTES_MAX {
            return Err(Error::refused(format!("{}: larger than 8 MiB", show(name))));
        }
        let mut bytes = Vec::new();
        part.read_to_end(&mut bytes).map_err(Error::disk("read the spool"))?;
        check(name, sha256, Sha256::digest(&bytes).as_slice())?;
        Ok(bytes)
    }

    /// A large part, checked against `sha256` where it is given before any of it is believed.
    pub fn verified(&self, name: &[u8], sha256: Option<&str>) -> Result<Section<'_>> {
        let part =
            self.part(name).ok_or_else(|| Error::refused(format!("the image lacks {}", show(name))))?;
        if sha256.is_some() {
            let mut hashing = Hashing::new(part.clone());
            io::copy(&mut hashing, &mut io::sink()).map_err(Error::disk("read the spool"))?;
            check(name, sha256, hashing.hash.finalize().as_slice())?;
        }
        Ok(part)
    }
}

/// Compares a hash with the hex text that was promised.
pub fn check(name: &[u8], promised: Option<&str>, found: &[u8]) -> Result<()> {
    let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    match promised {
        Some(promised) if promised != hex => {
            Err(Error::refused(format!("{}: its sha256 is {hex}, not {promised} as promised", show(name))))
        }
        _ => Ok(()),
    }
}

fn note(parts: &mut HashMap<Vec<u8>, Part>, entry: TarEntry) {
    let name = normal(&entry.path);
    if name.len() > PART_NAME_BYTES_MAX || parts.len() >= PARTS_MAX {
        return;
    }
    let part = match entry.kind {
        TarKind::File => Part::Bytes { offset: entry.offset, size: entry.size },
        TarKind::Hardlink => Part::Link(normal(&entry.link)),
        TarKind::Symlink => {
            let parent = name.iter().rposition(|b| *b == b'/').map_or(&b""[..], |at| &name[..at]);
            Part::Link(normal(&[parent, &entry.link].join(&b'/')))
        }
        _ => return,
    };
    parts.insert(name, part);
}

/// Without `.`, empty names and, as far as they go, `..`.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    names.join(&b'/')
}

/// A stretch of the spool.
#[derive(Clone)]
pub struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl<'a> Section<'a> {
    /// Of a file from its beginning.
    pub fn of(file: &'a File, size: u64) -> Self {
        Self { file, at: 0, left: size }
    }
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        let n = self.file.read_at(&mut out[..wanted], self.at)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

/// Copies to the spool all that passes.
struct Tee<'a, R> {
    stream: R,
    file: io::BufWriter<&'a File>,
    size: u64,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(out)?;
        let written = self.file.write_all(&out[..n]).map_err(Error::disk("write the spool"));
        written.map_err(Error::into_io)?;
        self.size += n as u64;
        Ok(n)
    }
}

/// Hashes all that passes.
pub struct Hashing<R> {
    stream: R,
    pub hash: Sha256,
}

impl<R> Hashing<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, hash: Sha256::new() }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(out)?;
        self.hash.update(&out[..n]);
        Ok(n)
    }
}
