//! The tree in memory: what replaces what, which parents appear, hard links, whiteouts.
//!
//! Invariants: node 0 is the root directory; a node is reached from the root by each of its names and by nothing
//! else; no walk is recursive, so depth costs no stack; the number of nodes is bounded.

use std::collections::BTreeMap;

use super::{
    Entry, Limits,
    below::{Below, Seen},
    blob::Place,
    layout::NAME_BYTES_MAX,
};
use crate::error::{Error, Result, show};

pub const ROOT: u32 = 0;
const OPAQUE: &[u8] = b"overlay.opaque";
/// About what a node and its name's place in a directory take.
const NODE_BYTES: u64 = 200;
const SYMLINK_HOPS_MAX: usize = 40;

/// One extended attribute, its namespace as EROFS numbers it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    pub index: u8,
    pub name: Box<[u8]>,
    pub value: Box<[u8]>,
}

const NAMESPACE_TRUSTED: u8 = 4;
const NAMESPACES: [(u8, &[u8]); 5] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (1, b"user."),
    (NAMESPACE_TRUSTED, b"trusted."),
    (6, b"security."),
];

/// What every inode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    pub xattrs: Box<[Xattr]>,
}

impl Attributes {
    /// Of a directory that nobody described.
    pub fn of_parent() -> Self {
        Self { mode: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Box::default() }
    }

    pub fn of(entry: &Entry) -> Result<Self> {
        if entry.mtime_ns >= 1_000_000_000 {
            return Err(Error::refused(format!("{}: bad time", show(&entry.path))));
        }
        Ok(Self {
            mode: (entry.mode & 0o7777) as u16,
            uid: entry.uid,
            gid: entry.gid,
            mtime_s: entry.mtime_s,
            mtime_ns: entry.mtime_ns,
            xattrs: xattrs_of(entry)?,
        })
    }

    /// The bytes that follow the inode; 0 without xattrs.
    pub fn xattr_bytes(&self) -> usize {
        if self.xattrs.is_empty() { 0 } else { 12 + self.xattrs.iter().map(entry_bytes).sum::<usize>() }
    }

    /// The xattrs as they stand after the inode.
    pub fn encode_xattrs(&self) -> Vec<u8> {
        let mut out = vec![0; if self.xattrs.is_empty() { 0 } else { 12 }];
        for x in &self.xattrs {
            out.extend([x.name.len() as u8, x.index]);
            out.extend((x.value.len() as u16).to_le_bytes());
            out.extend_from_slice(&x.name);
            out.extend_from_slice(&x.value);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    fn set_opaque(&mut self) {
        let mut xattrs: Vec<_> = std::mem::take(&mut self.xattrs).into_vec();
        xattrs.retain(|x| !(x.index == NAMESPACE_TRUSTED && &*x.name == OPAQUE));
        xattrs.push(Xattr { index: NAMESPACE_TRUSTED, name: OPAQUE.into(), value: (*b"y").into() });
        xattrs.sort();
        self.xattrs = xattrs.into();
    }

    pub(super) fn without_opaque(&self) -> Self {
        let kept = self.xattrs.iter().filter(|x| !(x.index == NAMESPACE_TRUSTED && &*x.name == OPAQUE));
        Self { xattrs: kept.cloned().collect(), ..self.clone() }
    }
}

fn entry_bytes(x: &Xattr) -> usize {
    (4 + x.name.len() + x.value.len()).next_multiple_of(4)
}

/// Sorted, the last of equal names. overlayfs's own attributes are dropped, but for `opaque`: in a stranger's layer
/// they would steer the mount.
fn xattrs_of(entry: &Entry) -> Result<Box<[Xattr]>> {
    let mut named = BTreeMap::new();
    for (full, value) in &entry.xattrs {
        let Some((index, name)) = split_xattr(full) else { continue };
        if index == NAMESPACE_TRUSTED && name.starts_with(b"overlay.") && !(name == OPAQUE && value == b"y") {
            continue;
        }
        if name.len() > 255 || value.len() > 0xffff || name.contains(&0) {
            return Err(Error::refused(format!("{}: an extended attribute is too large", show(&entry.path))));
        }
        named.insert((index, name), value);
    }
    let xattrs: Box<[_]> = named
        .into_iter()
        .map(|((index, name), value)| Xattr { index, name: name.into(), value: value.as_slice().into() })
        .collect();
    if xattrs.iter().map(entry_bytes).sum::<usize>() > 4 * 0xfffe {
        return Err(Error::refused(format!("{}: its extended attributes are too large", show(&entry.path))));
    }
    Ok(xattrs)
}

fn split_xattr(full: &[u8]) -> Option<(u8, &[u8])> {
    NAMESPACES.iter().find_map(|(index, prefix)| {
        let name = full.strip_prefix(*prefix)?;
        let is_whole = !prefix.ends_with(b".");
        (name.is_empty() == is_whole).then_some((*index, name))
    })
}

/// The full name of what an image has under a namespace's number; None for a namespace that we do not write.
pub fn xattr_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = NAMESPACES.iter().find(|(number, _)| *number == index)?;
    (name.is_empty() != prefix.ends_with(b".")).then(|| [prefix, name].concat())
}

/// What a node is.
#[derive(Debug)]
pub enum Body {
    Directory(BTreeMap<Box<[u8]>, u32>),
    File { size: u64, place: Place },
    Symlink(Box<[u8]>),
    Device { char: bool, rdev: u32 },
    Fifo,
    Socket,
}

impl Body {
    pub fn symlink(path: &[u8], target: Vec<u8>) -> Result<Self> {
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(Error::refused(format!(
                "{}: a symlink's target has 1 to 4095 bytes, no NUL",
                show(path)
            )));
        }
        Ok(Self::Symlink(target.into()))
    }

    /// The type as dirents have it, and as modes have it.
    pub fn types(&self) -> (u8, u16) {
        match self {
            Body::File { .. } => (1, 0o100_000),
            Body::Directory(_) => (2, 0o040_000),
            Body::Device { char: true, .. } => (3, 0o020_000),
            Body::Device { char: false, .. } => (4, 0o060_000),
            Body::Fifo => (5, 0o010_000),
            Body::Socket => (6, 0o140_000),
            Body::Symlink(_) => (7, 0o120_000),
        }
    }
}

#[derive(Debug)]
pub struct Node {
    pub attributes: Attributes,
    pub body: Body,
    /// Names of it; of a directory, 2 and one for each directory in it.
    pub links: u32,
}

pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// The tree. See the module.
pub struct Tree {
    nodes: Vec<Node>,
    entries_max: u64,
    bytes_left: u64,
    below: Below,
    /// Of parents that nobody described, here or below.
    owner: (u32, u32),
    /// Whether somebody described the root.
    root_described: bool,
}

impl Tree {
    pub fn new(limits: &Limits) -> Self {
        let root =
            Node { attributes: Attributes::of_parent(), body: Body::Directory(BTreeMap::new()), links: 2 };
        Self {
            nodes: vec![root],
            entries_max: limits.entries_max.min(u64::from(u32::MAX / 2)),
            bytes_left: limits.tree_bytes_max,
            below: Below::default(),
            owner: (0, 0),
            root_described: false,
        }
    }

    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// Nodes ever made, those replaced since included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was added at all.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1 && !self.root_described
    }

    /// Whether the root hides all below it.
    pub fn is_opaque(&self) -> bool {
        let mut xattrs = self.nodes[ROOT as usize].attributes.xattrs.iter();
        xattrs.any(|x| x.index == NAMESPACE_TRUSTED && &*x.name == OPAQUE)
    }

    /// Takes `bytes` and what a node needs from the memory that this import may use.
    pub fn charge(&mut self, bytes: usize) -> Result<()> {
        let left = self.bytes_left.checked_sub(bytes as u64 + NODE_BYTES);
        self.bytes_left = left.ok_or_else(|| {
            Error::refused("its names and attributes take more memory than this node gives to one import")
        })?;
        Ok(())
    }

    /// Before the first entry: what lies below.
    pub fn set_below(&mut self, below: Below) {
        if let Some(Seen::Directory(attributes)) = below.get(b"") {
            self.nodes[0].attributes = attributes.clone();
        }
        self.below = below;
    }

    pub fn take_below(&mut self) -> Below {
        std::mem::take(&mut self.below)
    }

    /// Who owns the directories that are missing in the archive.
    pub fn set_owner_of_parents(&mut self, uid: u32, gid: u32) {
        self.owner = (uid, gid);
    }

    pub fn put_directory(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        self.charge(attributes.xattr_bytes())?;
        let Some((parent, name)) = self.parent_of(path)? else {
            self.nodes[ROOT as usize].attributes = attributes;
            self.root_described = true;
            return Ok(());
        };
        match self.child(parent, &name) {
            Some(index) if self.is_directory(index) => self.nodes[index as usize].attributes = attributes,
            _ => drop(self.insert(parent, &name, attributes, Body::Directory(BTreeMap::new()))?),
        }
        Ok(())
    }

    pub fn put(&mut self, path: &[u8], attributes: Attributes, body: Body) -> Result<()> {
        let Some((parent, name)) = self.parent_of(path)? else {
            return Err(Error::refused(format!("{}: the root must be a directory", show(path))));
        };
        self.insert(parent, &name, attributes, body).map(drop)
    }

    /// Gives the node at `target` the name `path` too.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let missing = || {
            format!("{}: its hard link's target {} is not in the archive before it", show(path), show(target))
        };
        let index = self.find(target)?.ok_or_else(|| Error::refused(missing()))?;
        if self.is_directory(index) {
            return Err(Error::refused(format!("{}: a hard link to a directory", show(path))));
        }
        let Some((parent, name)) = self.parent_of(path)? else {
            return Err(Error::refused(format!("{}: the root must be a directory", show(path))));
        };
        if self.child(parent, &name) != Some(index) {
            self.charge(name.len())?;
            self.unname(parent, &name);
            self.nodes[index as usize].links += 1;
            self.name(parent, name, index);
        }
        Ok(())
    }

    /// Marks what lies below at `path` as removed. What this layer has there itself stays, a directory of it opaque.
    pub fn whiteout(&mut self, path: &[u8]) -> Result<()> {
        match self.find(path)? {
            Some(index) if self.is_directory(index) => self.nodes[index as usize].attributes.set_opaque(),
            Some(_) => {}
            None => {
                let attributes = Attributes { mode: 0, ..Attributes::of_parent() };
                self.put(path, attributes, Body::Device { char: true, rdev: 0 })?;
            }
        }
        Ok(())
    }

    /// Makes the directory at `path` hide what lies below it.
    pub fn opaque(&mut self, path: &[u8]) -> Result<()> {
        let index = match self.parent_of(path)? {
            None => ROOT,
            Some((parent, name)) => match self.child(parent, &name) {
                Some(index) if self.is_directory(index) => index,
                Some(_) => return Err(Error::refused(format!("{}: opaque, but no directory", show(path)))),
                None => {
                    let full = components(path)?.join(&b'/');
                    let attributes = self.attributes_below(&full);
                    self.insert(parent, &name, attributes, Body::Directory(BTreeMap::new()))?
                }
            },
        };
        self.nodes[index as usize].attributes.set_opaque();
        Ok(())
    }

    fn is_directory(&self, index: u32) -> bool {
        matches!(self.nodes[index as usize].body, Body::Directory(_))
    }

    fn child(&self, parent: u32, name: &[u8]) -> Option<u32> {
        match &self.nodes[parent as usize].body {
            Body::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    /// The node at `path`; missing parents appear.
    fn find(&mut self, path: &[u8]) -> Result<Option<u32>> {
        let parent = self.parent_of(path)?;
        Ok(parent.map_or(Some(ROOT), |(parent, name)| self.child(parent, &name)))
    }

    /// The directory that holds `path`'s last name, made where it is missing; None for the root itself.
    fn parent_of(&mut self, path: &[u8]) -> Result<Option<(u32, Vec<u8>)>> {
        let mut parts: Vec<Vec<u8>> = components(path)?.into_iter().rev().map(<[u8]>::to_vec).collect();
        let mut at = vec![ROOT];
        let mut walked: Vec<Vec<u8>> = Vec::new();
        let mut hops = 0;
        while parts.len() > 1 {
            let Some(part) = parts.pop() else { break };
            if part == b".." {
                // Of a symlink below; the root is its own parent.
                walked.pop();
                at.truncate(walked.len() + 1);
                continue;
            }
            let here = at[walked.len()];
            let child = self.child(here, &part);
            walked.push(part);
            match child {
                Some(index) if self.is_directory(index) => at.push(index),
                Some(_) => {
                    let parent = show(&walked.join(&b'/'));
                    return Err(Error::refused(format!(
                        "{}: its parent {parent} is not a directory",
                        show(path)
                    )));
                }
                None => match self.symlink_below(&walked) {
                    Some(target) => {
                        hops += 1;
                        if hops > SYMLINK_HOPS_MAX {
                            return Err(Error::refused(format!(
                                "{}: too many symlinks on the way",
                                show(path)
                            )));
                        }
                        walked.pop();
                        if target.starts_with(b"/") {
                            walked.clear();
                        }
                        at.truncate(walked.len() + 1);
                        let names = target.rsplit(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".");
                        parts.extend(names.map(<[u8]>::to_vec));
                    }
                    None => at.push(self.insert_parent(here, &walked)?),
                },
            }
        }
        Ok(parts.pop().map(|name| (at[walked.len()], name)))
    }

    fn symlink_below(&self, walked: &[Vec<u8>]) -> Option<Box<[u8]>> {
        if self.below.is_empty() {
            return None;
        }
        match self.below.get(&walked.join(&b'/')) {
            Some(Seen::Symlink(target)) => Some(target.clone()),
            _ => None,
        }
    }

    fn insert_parent(&mut self, parent: u32, walked: &[Vec<u8>]) -> Result<u32> {
        let attributes = self.attributes_below(&walked.join(&b'/'));
        let name = walked.last().map_or(&b""[..], Vec::as_slice);
        self.insert(parent, name, attributes, Body::Directory(BTreeMap::new()))
    }

    fn attributes_below(&self, path: &[u8]) -> Attributes {
        match self.below.get(path) {
            Some(Seen::Directory(attributes)) => attributes.clone(),
            _ => Attributes { uid: self.owner.0, gid: self.owner.1, ..Attributes::of_parent() },
        }
    }

    fn insert(&mut self, parent: u32, name: &[u8], attributes: Attributes, body: Body) -> Result<u32> {
        if self.nodes.len() as u64 > self.entries_max {
            return Err(Error::refused(format!("more than {} entries", self.entries_max)));
        }
        let target_bytes = if let Body::Symlink(target) = &body { target.len() } else { 0 };
        self.charge(name.len() + attributes.xattr_bytes() + target_bytes)?;
        self.unname(parent, name);
        let is_directory = matches!(body, Body::Directory(_));
        let index = self.nodes.len() as u32;
        self.nodes.push(Node { attributes, body, links: if is_directory { 2 } else { 1 } });
        if is_directory {
            self.nodes[parent as usize].links += 1;
        }
        self.name(parent, name.to_vec(), index);
        Ok(index)
    }

    fn name(&mut self, parent: u32, name: Vec<u8>, index: u32) {
        if let Body::Directory(children) = &mut self.nodes[parent as usize].body {
            children.insert(name.into(), index);
        }
    }

    /// Takes a name away, and with a directory all names below it.
    fn unname(&mut self, parent: u32, name: &[u8]) {
        let Body::Directory(children) = &mut self.nodes[parent as usize].body else { return };
        let Some(index) = children.remove(name) else { return };
        if self.is_directory(index) {
            self.nodes[parent as usize].links -= 1;
        }
        let mut gone = vec![index];
        while let Some(index) = gone.pop() {
            let node = &mut self.nodes[index as usize];
            match &mut node.body {
                Body::Directory(children) => gone.extend(std::mem::take(children).into_values()),
                _ => node.links -= 1,
            }
        }
    }
}

/// The names of a path: no empty ones, no `.`; `..`, NUL and long names are refused.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let bad = |why: &str| Err(Error::refused(format!("{}: {why}", show(path))));
    if path.len() > api::limit::PATH_BYTES_MAX {
        return bad("the path is longer than 4095 bytes");
    }
    if path.contains(&0) {
        return bad("a path holds no NUL");
    }
    let parts: Vec<_> = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return bad("`..` has no place in an entry's path");
    }
    if parts.iter().any(|part| part.len() > NAME_BYTES_MAX) {
        return bad("a name is longer than 255 bytes");
    }
    Ok(parts)
}
