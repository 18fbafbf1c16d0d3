//! What the layers below show, as far as a layer above must know it; and that knowledge as bytes, so that a layer can
//! be made over others that were made long ago.
//!
//! Invariant: bytes that `trace` wrote and `follow` reads make the same of a `Below` as `cover` did.

use std::{collections::HashMap, io, io::Write};

use super::tree::{Attributes, Body, ROOT, Tree, Xattr, join};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    Directory(Attributes),
    Symlink(Box<[u8]>),
}

/// Directories and symlinks of the layers below: an undescribed parent takes its attributes from there, and a path
/// through a symlink below goes where that leads, as it would if the layers were unpacked over each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Below(HashMap<Vec<u8>, Seen>);

const GONE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;

impl Below {
    pub(super) fn get(&self, path: &[u8]) -> Option<&Seen> {
        self.0.get(path)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lays `tree` over what is known, and writes to `trace` what that changed.
    pub fn cover(&mut self, tree: &Tree, trace: &mut dyn Write) -> io::Result<()> {
        let mut queue = vec![(ROOT, Vec::new())];
        while let Some((index, path)) = queue.pop() {
            let node = tree.node(index);
            let seen = match &node.body {
                Body::Directory(children) => {
                    queue.extend(children.iter().map(|(name, child)| (*child, join(&path, name))));
                    Seen::Directory(node.attributes.without_opaque())
                }
                Body::Symlink(target) => Seen::Symlink(target.clone()),
                _ => {
                    if self.0.remove(&path).is_some() {
                        write_step(trace, &path, None)?;
                    }
                    continue;
                }
            };
            write_step(trace, &path, Some(&seen))?;
            self.0.insert(path, seen);
        }
        Ok(())
    }

    /// Does what `cover` did when it wrote `trace`. None: these are no such bytes.
    pub fn follow(&mut self, mut trace: &[u8]) -> Option<()> {
        while !trace.is_empty() {
            let path = take_bytes(&mut trace)?.to_vec();
            match take::<1>(&mut trace)?[0] {
                GONE => drop(self.0.remove(&path)),
                DIRECTORY => drop(self.0.insert(path, Seen::Directory(take_attributes(&mut trace)?))),
                SYMLINK => drop(self.0.insert(path, Seen::Symlink(take_bytes(&mut trace)?.into()))),
                _ => return None,
            }
        }
        Some(())
    }
}

fn write_step(out: &mut dyn Write, path: &[u8], seen: Option<&Seen>) -> io::Result<()> {
    write_bytes(out, path)?;
    match seen {
        None => out.write_all(&[GONE]),
        Some(Seen::Symlink(target)) => {
            out.write_all(&[SYMLINK])?;
            write_bytes(out, target)
        }
        Some(Seen::Directory(a)) => {
            out.write_all(&[DIRECTORY])?;
            out.write_all(&a.mode.to_le_bytes())?;
            out.write_all(&a.uid.to_le_bytes())?;
            out.write_all(&a.gid.to_le_bytes())?;
            out.write_all(&a.mtime_s.to_le_bytes())?;
            out.write_all(&a.mtime_ns.to_le_bytes())?;
            out.write_all(&(a.xattrs.len() as u32).to_le_bytes())?;
            a.xattrs.iter().try_for_each(|x| {
                out.write_all(&[x.index])?;
                write_bytes(out, &x.name)?;
                write_bytes(out, &x.value)
            })
        }
    }
}

/// Paths and values are far below 4 GiB.
fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(bytes)
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*head)
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take(from)?) as usize;
    let (head, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(head)
}

fn take_attributes(from: &mut &[u8]) -> Option<Attributes> {
    let mode = u16::from_le_bytes(take(from)?);
    let (uid, gid) = (u32::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
    let (mtime_s, mtime_ns) = (i64::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
    let count = u32::from_le_bytes(take(from)?);
    let mut xattrs = Vec::new();
    for _ in 0..count {
        let index = take::<1>(from)?[0];
        xattrs.push(Xattr { index, name: take_bytes(from)?.into(), value: take_bytes(from)?.into() });
    }
    Some(Attributes { mode, uid, gid, mtime_s, mtime_ns, xattrs: xattrs.into() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Limits;

    fn directory(mode: u16, xattrs: Vec<Xattr>) -> Attributes {
        Attributes { mode, mtime_s: -5, mtime_ns: 7, xattrs: xattrs.into(), ..Attributes::of_parent() }
    }

    #[test]
    fn a_trace_is_followed_to_the_same_end() {
        let xattr = Xattr { index: 1, name: (*b"k").into(), value: vec![0, 255].into() };
        let mut lower = Tree::new(&Limits::default());
        lower.put_directory(b"a/b", directory(0o700, vec![xattr])).unwrap();
        lower
            .put(b"lib", directory(0o777, vec![]), Body::symlink(b"lib", b"usr/lib".into()).unwrap())
            .unwrap();
        let mut upper = Tree::new(&Limits::default());
        upper.put(b"a/b", directory(0o600, vec![]), Body::Fifo).unwrap();
        upper.put(b"new", directory(0o600, vec![]), Body::Fifo).unwrap();

        let (mut made, mut followed) = (Below::default(), Below::default());
        for tree in [&lower, &upper] {
            let mut trace = Vec::new();
            made.cover(tree, &mut trace).unwrap();
            followed.follow(&trace).unwrap();
            assert_eq!(made, followed);
            for end in 0..trace.len() {
                // Cut short it is refused or ends earlier, and never panics.
                let _ = Below::default().follow(&trace[..end]);
            }
        }
        assert!(made.get(b"a/b").is_none() && made.get(b"lib").is_some());
        assert!(Below::default().follow(&[0xff; 64]).is_none());
    }
}
