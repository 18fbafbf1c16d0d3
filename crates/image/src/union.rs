//! Walks one layer, or several as overlayfs would show them, and gives entries as the writer takes them.
//!
//! Depth first, the names of a directory in the order of bytes, a directory before what is in it, the first name of an
//! inode before its hard links.
//!
//! What decides, from the top layer down: a whiteout, or whatever is no directory, hides all below it; a directory shows
//! the attributes of its top layer and the names of each layer down to an opaque one, or to one that has no directory
//! there. At the root nothing is looked at but names, as in overlayfs.
//!
//! Invariants: a directory is walked once, so a damaged layer that holds itself ends in an error; entries and bytes are
//! bounded by [`Limits`]; memory grows with the names on the way down, and with inodes that have several names.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    erofs::{
        Entry, Kind, Limits,
        read::{Data, Node, OPAQUE, Reader},
    },
    error::{Error, Result},
};

/// Paths of a layer may be longer than those of an archive, where one led through symlinks below; not without end.
const PATH_BYTES_MAX: usize = 4 * api::limit::PATH_BYTES_MAX;

/// Which whiteouts and opaque directories a walk gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hides {
    /// Each that the layer has: for the walk of one layer.
    All,
    /// Where something that lies below could show otherwise.
    Needed,
    /// None: nothing lies below.
    None,
}

/// One entry of a walk.
#[derive(Debug)]
pub struct Item {
    pub entry: Entry,
    /// The layer that decided, and its inode.
    pub layer: usize,
    pub node: Node,
}

/// Where a name leads to: a layer and a number in it, the top layer first.
type Places = Vec<(usize, u64)>;

/// See the module.
pub struct Union<'a> {
    /// Lowest first.
    layers: &'a [Reader],
    hides: Hides,
    started: bool,
    stack: Vec<Frame>,
    /// The first name of what has several.
    linked: HashMap<(usize, u64), Vec<u8>>,
    walked: HashSet<(usize, u64)>,
    entries_left: u64,
    bytes_left: u64,
}

/// A directory on the way down.
struct Frame {
    path: Vec<u8>,
    hides: Hides,
    children: std::collections::btree_map::IntoIter<Box<[u8]>, Places>,
}

impl<'a> Union<'a> {
    /// Lowest first.
    pub fn new(layers: &'a [Reader], hides: Hides, limits: &Limits) -> Self {
        Self {
            layers,
            hides,
            started: false,
            stack: Vec::new(),
            linked: HashMap::new(),
            walked: HashSet::new(),
            entries_left: limits.entries_max,
            bytes_left: limits.bytes_max,
        }
    }

    /// The next entry, the root first. After an error there is nothing more to ask.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        if !self.started {
            self.started = true;
            return self.root();
        }
        while let Some(frame) = self.stack.last_mut() {
            let Some((name, places)) = frame.children.next() else {
                self.stack.pop();
                continue;
            };
            let path =
                if frame.path.is_empty() { name.into_vec() } else { [&frame.path, &*name].join(&b'/') };
            if path.len() > PATH_BYTES_MAX {
                return Err(Error::Damaged("a path is longer than any that was written"));
            }
            let hides = frame.hides;
            if let Some(item) = self.one(path, places, hides)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// The bytes of an item's file.
    pub fn data<'i>(&self, item: &'i Item) -> Data<'i>
    where
        'a: 'i,
    {
        self.layers[item.layer].data(&item.node)
    }

    fn root(&mut self) -> Result<Option<Item>> {
        let mut roots = Vec::new();
        for (number, layer) in self.layers.iter().enumerate().rev() {
            roots.push((number, layer.root()?));
        }
        let names = self.names(&roots)?;
        self.stack.push(Frame { path: Vec::new(), hides: self.hides, children: names.into_iter() });
        let top = roots.into_iter().next();
        Ok(top.map(|(layer, node)| self.item(Vec::new(), layer, node, None)))
    }

    /// What is at `path`, if anything is.
    fn one(&mut self, path: Vec<u8>, places: Places, hides: Hides) -> Result<Option<Item>> {
        let left = self.entries_left.checked_sub(1);
        self.entries_left = left.ok_or(Error::Damaged("more entries than an image may have"))?;
        let Some((layer, nid)) = places.first().copied() else { return Ok(None) };
        let node = self.layers[layer].node(nid)?;
        if node.is_directory() {
            return self.directory(path, layer, node, places, hides).map(Some);
        }
        if node.is_whiteout() && hides == Hides::None {
            return Ok(None);
        }
        let left = if node.kind == Kind::File { self.bytes_left.checked_sub(node.size) } else { Some(0) };
        let left = left.ok_or(Error::Damaged("its files are larger than an image's may be"))?;
        let mut link = None;
        if node.links > 1 {
            match self.linked.get(&(layer, nid)) {
                Some(first) => link = Some(Kind::Hardlink(first.clone())),
                None => drop(self.linked.insert((layer, nid), path.clone())),
            }
        }
        if node.kind == Kind::File && link.is_none() {
            self.bytes_left = left;
        }
        Ok(Some(self.item(path, layer, node, link)))
    }

    fn directory(
        &mut self,
        path: Vec<u8>,
        layer: usize,
        top: Node,
        places: Places,
        hides: Hides,
    ) -> Result<Item> {
        let mut opaque = top.is_opaque();
        let mut merged = vec![(layer, top)];
        for (layer, nid) in places.into_iter().skip(1) {
            if opaque {
                break;
            }
            let node = self.layers[layer].node(nid)?;
            opaque = node.is_opaque() || !node.is_directory();
            if node.is_directory() {
                merged.push((layer, node));
            }
        }
        let within = if opaque && hides == Hides::Needed { Hides::None } else { hides };
        let names = self.names(&merged)?;
        self.stack.push(Frame { path: path.clone(), hides: within, children: names.into_iter() });
        let (layer, top) = merged.swap_remove(0);
        let mut item = self.item(path, layer, top, None);
        if opaque && hides == Hides::Needed {
            item.entry.xattrs.push((OPAQUE.to_vec(), b"y".to_vec()));
        }
        Ok(item)
    }

    /// The names of directories that lie over each other, the top one first.
    fn names(&mut self, directories: &[(usize, Node)]) -> Result<BTreeMap<Box<[u8]>, Places>> {
        let mut names: BTreeMap<_, Places> = BTreeMap::new();
        for (layer, directory) in directories {
            if !self.walked.insert((*layer, directory.nid)) {
                return Err(Error::Damaged("a directory has two names"));
            }
            for name in self.layers[*layer].names(directory)? {
                names.entry(name.name).or_default().push((*layer, name.nid));
            }
        }
        Ok(names)
    }

    fn item(&self, path: Vec<u8>, layer: usize, node: Node, link: Option<Kind>) -> Item {
        let mut xattrs = node.xattrs.clone();
        if self.hides != Hides::All {
            // overlayfs shows it on nothing; where it is still due, the caller puts it back.
            xattrs.retain(|(name, _)| name != OPAQUE);
        }
        let entry = Entry {
            path,
            kind: link.unwrap_or_else(|| node.kind.clone()),
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            mtime_s: node.mtime_s,
            mtime_ns: node.mtime_ns,
            xattrs,
        };
        Item { entry, layer, node }
    }
}
