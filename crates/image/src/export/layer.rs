//! One layer, or the union of all, as a tar.
//!
//! In a layer, what hides something below has OCI's names: `.wh.<name>` for a whiteout, `.wh..wh..opq` in an opaque
//! directory. Sockets are left out: a tar has no word for them.

use std::io::{self, Read, Write};

use super::{
    order::{self, Waiting},
    tar::{Header, TarWriter},
};
use crate::{
    erofs::{
        Entry, Kind, Limits,
        read::{Node, OPAQUE, Reader},
    },
    error::{Error, Result, show},
    union::{Hides, Item, Union},
};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

/// Errors where a tar cannot hold it.
pub fn check(entry: &Entry) -> Result<()> {
    match entry.xattrs.iter().find(|(name, _)| name.contains(&b'=')) {
        Some((name, _)) => Err(Error::refused(format!(
            "{}: its extended attribute {} has `=` in its name, which a tar cannot hold",
            show(&entry.path),
            show(name)
        ))),
        None => Ok(()),
    }
}

/// Errors where an OCI layer cannot hold something in it.
pub fn check_layer(layer: &Reader, limits: &Limits) -> Result<()> {
    let layers = std::slice::from_ref(layer);
    let mut union = Union::new(layers, Hides::All, limits);
    while let Some(item) = union.next_item()? {
        check(&item.entry)?;
        if split(&item.entry.path).1.starts_with(WHITEOUT) {
            return Err(Error::refused(format!(
                "{}: in an OCI layer such a name removes another: export it as `tar`",
                show(&item.entry.path)
            )));
        }
    }
    Ok(())
}

/// The union, each directory before what is in it.
pub fn write_union(mut union: Union<'_>, tar: &mut TarWriter<impl Write>) -> Result<()> {
    while let Some(item) = union.next_item()? {
        write(&item.entry, &item.node, &mut union.data(&item), tar)?;
    }
    Ok(())
}

/// One layer: directories and all else that has no bytes, then files as they lie in the blob, then hard links. `alive`
/// is asked all along whether to go on.
pub fn write_layer(
    layer: &Reader,
    limits: &Limits,
    tar: &mut TarWriter<impl Write>,
    alive: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut union = Union::new(std::slice::from_ref(layer), Hides::All, limits);
    let (mut files, mut links) = (Vec::new(), Vec::new());
    while let Some(item) = union.next_item()? {
        alive()?;
        let Item { entry, node, .. } = item;
        match &entry.kind {
            _ if node.is_whiteout() => write_whiteout(&entry.path, tar)?,
            Kind::Directory => write_directory(entry, &node, tar)?,
            Kind::File => files.push(Waiting::new(layer, entry.path, &node)?),
            Kind::Hardlink(first) => links.push((entry.path, node.nid, first.clone())),
            _ => write(&entry, &node, &mut io::empty(), tar)?,
        }
    }
    order::sort(layer, &mut files)?;
    for file in files {
        let node = layer.node(file.nid)?;
        let entry = entry_of(file.path, node.kind.clone(), &node);
        write(&entry, &node, &mut Asking { data: layer.data(&node), alive }, tar)?;
    }
    for (path, nid, first) in links {
        let node = layer.node(nid)?;
        write(&entry_of(path, Kind::Hardlink(first), &node), &node, &mut io::empty(), tar)?;
    }
    Ok(())
}

fn entry_of(path: Vec<u8>, kind: Kind, node: &Node) -> Entry {
    let Node { mode, uid, gid, mtime_s, mtime_ns, .. } = *node;
    Entry { path, kind, mode, uid, gid, mtime_s, mtime_ns, xattrs: node.xattrs.clone() }
}

fn write_directory(mut entry: Entry, node: &Node, tar: &mut TarWriter<impl Write>) -> Result<()> {
    entry.xattrs.retain(|(name, _)| name != OPAQUE);
    write(&entry, node, &mut io::empty(), tar)?;
    match node.is_opaque() {
        true => tar.file(&join(&entry.path, OPAQUE_NAME), b""),
        false => Ok(()),
    }
}

fn write_whiteout(path: &[u8], tar: &mut TarWriter<impl Write>) -> Result<()> {
    let (parent, name) = split(path);
    tar.file(&join(parent, &[WHITEOUT, name].concat()), b"")
}

fn write(entry: &Entry, node: &Node, data: &mut dyn Read, tar: &mut TarWriter<impl Write>) -> Result<()> {
    let mut header = Header {
        path: &entry.path,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        mtime_s: entry.mtime_s,
        mtime_ns: entry.mtime_ns,
        xattrs: &entry.xattrs,
        ..Header::default()
    };
    let directory;
    match &entry.kind {
        // Also where this is another name of one.
        _ if node.kind == Kind::Socket => return Ok(()),
        Kind::File => (header.flag, header.size) = (b'0', node.size),
        Kind::Hardlink(first) => (header.flag, header.link, header.xattrs) = (b'1', first, &[]),
        Kind::Symlink(target) => (header.flag, header.link) = (b'2', target),
        Kind::Char { major, minor } => (header.flag, header.major, header.minor) = (b'3', *major, *minor),
        Kind::Block { major, minor } => (header.flag, header.major, header.minor) = (b'4', *major, *minor),
        Kind::Directory => {
            directory =
                if entry.path.is_empty() { b"./".to_vec() } else { [&entry.path, &b"/"[..]].concat() };
            (header.flag, header.path) = (b'5', &directory);
        }
        Kind::Fifo => header.flag = b'6',
        Kind::Socket => return Ok(()),
    }
    tar.header(&header)?;
    tar.data(data, header.size)
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, name].join(&b'/') }
}

/// Parent and last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Reads as long as somebody wants it.
struct Asking<'a, R> {
    data: R,
    alive: &'a mut dyn FnMut() -> Result<()>,
}

impl<R: Read> Read for Asking<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (self.alive)().map_err(Error::into_io)?;
        self.data.read(out)
    }
}
