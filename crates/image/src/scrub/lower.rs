//! What lies below a disk that is packed: something scrubbed leaves a whiteout only where it hides something.
//!
//! overlayfs shows the whiteouts of a directory that is in one layer only, as names that cannot be looked up: a scrubbed file
//! of a new directory must leave nothing, not even its name.

use std::{ffi::OsStr, io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

use crate::{
    erofs::read::{Name, Node, Reader},
    error::{Error, Result},
};

/// As an overlay in a user namespace, and another, marks a directory that hides all below it.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// The layers below, looked into when they are needed.
pub(crate) struct Lower<'a> {
    upper: &'a Path,
    open: Box<dyn Fn() -> Result<Vec<Reader>> + 'a>,
    layers: Option<Vec<Reader>>,
    /// The directory that was asked for last, and its names in each layer that has it. The walk goes by directories.
    last: Option<(Vec<u8>, Found)>,
}

/// A layer, and its names in a directory.
type Found = Vec<(usize, Vec<Name>)>;

impl<'a> Lower<'a> {
    pub(crate) fn new(upper: &'a Path, open: impl Fn() -> Result<Vec<Reader>> + 'a) -> Self {
        Self { upper, open: Box::new(open), layers: None, last: None }
    }

    /// Whether a layer has something there that would show through. `path` is relative to the root.
    pub(crate) fn has(&mut self, path: &[u8]) -> Result<bool> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            let names = if self.is_hidden(parent)? { Found::new() } else { self.names(parent)? };
            self.last = Some((parent.to_owned(), names));
        }
        let (Some((_, found)), Some(layers)) = (&self.last, &self.layers) else { return Ok(false) };
        for (layer, names) in found {
            if let Ok(at) = names.binary_search_by(|one| (*one.name).cmp(name))
                && !layers[*layer].node(names[at].nid)?.is_whiteout()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the disk itself has a directory on the way that hides all below it.
    fn is_hidden(&self, directory: &[u8]) -> Result<bool> {
        let mut at = self.upper.to_owned();
        for part in directory.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            at.push(OsStr::from_bytes(part));
            for name in OPAQUE {
                match xattr::get(&at, name) {
                    Ok(Some(value)) if value == b"y" => return Ok(true),
                    Ok(_) => {}
                    Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::NotFound) => {}
                    Err(e) => return Err(Error::disk("read a directory of the disk")(e)),
                }
            }
        }
        Ok(false)
    }

    fn names(&mut self, directory: &[u8]) -> Result<Found> {
        let layers = match &mut self.layers {
            Some(layers) => layers,
            none => none.insert((self.open)()?),
        };
        let mut found = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            if let Some(node) = find(layer, directory)?
                && node.is_directory()
            {
                found.push((number, layer.names(&node)?));
            }
        }
        Ok(found)
    }
}

fn find(layer: &Reader, path: &[u8]) -> Result<Option<Node>> {
    let mut node = layer.root()?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        if !node.is_directory() {
            return Ok(None);
        }
        let names = layer.names(&node)?;
        let Ok(at) = names.binary_search_by(|one| (*one.name).cmp(part)) else { return Ok(None) };
        node = layer.node(names[at].nid)?;
    }
    Ok(Some(node))
}
