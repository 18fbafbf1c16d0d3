//! From the tree to the bytes of the image: gives each inode its place, then writes all in one sweep.
//!
//! Invariants: inodes are placed breadth first, so a directory's children lie together; what is inline never
//! crosses a block; a node with several names is written once.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
};

use super::{
    blob::{CHUNK_BYTES, Finished, Place},
    layout::*,
    tree::{Body, Node, ROOT, Tree},
};
use crate::error::{Error, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A node's place in the image.
struct Placed {
    node: u32,
    parent: u32,
    offset: u64,
    data: Data,
    size: u64,
    /// First block of what is not inline.
    block: u32,
    /// How many blocks from there.
    blocks: u32,
}

/// All places, and for each node of the tree the offset of its inode (0: not reached).
struct Plan {
    placed: Vec<Placed>,
    offsets: Vec<u64>,
    blocks: u32,
}

/// Writes the image. Returns the number of inodes and of bytes.
pub fn emit(tree: &Tree, blob: &Finished, meta: &File) -> Result<(u64, u64)> {
    let plan = plan(tree)?;
    write(tree, &plan, meta).map_err(Error::disk("write the image"))?;
    finish_block_0(&plan, blob, meta).map_err(Error::disk("write the superblock"))?;
    Ok((plan.placed.len() as u64, u64::from(plan.blocks) * BLOCK))
}

/// Feeds all bytes of `file` to `hasher`.
pub fn hash(file: &File, hasher: &mut blake3::Hasher) -> Result<()> {
    hash_from(file, 0, hasher).map_err(Error::disk("read the image back"))
}

fn hash_from(file: &File, mut at: u64, hasher: &mut blake3::Hasher) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let n = file.read_at(&mut buffer, at)?;
        if n == 0 {
            return Ok(());
        }
        hasher.update(&buffer[..n]);
        at += n as u64;
    }
}

fn plan(tree: &Tree) -> Result<Plan> {
    let mut plan = Plan { placed: Vec::new(), offsets: vec![0; tree.len()], blocks: 0 };
    let mut end = INODES_OFFSET;
    let mut queue = VecDeque::from([ROOT]);
    place(tree, ROOT, ROOT, &mut plan, &mut end)?;
    while let Some(directory) = queue.pop_front() {
        let Body::Directory(children) = &tree.node(directory).body else { continue };
        for child in children.values() {
            if plan.offsets[*child as usize] == 0 {
                place(tree, *child, directory, &mut plan, &mut end)?;
                queue.push_back(*child);
            }
        }
    }
    let mut block = end.div_ceil(BLOCK);
    for placed in plan.placed.iter_mut().filter(|placed| placed.blocks > 0) {
        placed.block = u32::try_from(block).map_err(|_| Error::refused("too many entries for one layer"))?;
        block += u64::from(placed.blocks);
    }
    plan.blocks = u32::try_from(block).map_err(|_| Error::refused("too many entries for one layer"))?;
    Ok(plan)
}

/// Gives `node` its place at `end` or soon after it.
fn place(tree: &Tree, node: u32, parent: u32, plan: &mut Plan, end: &mut u64) -> Result<()> {
    let Node { attributes, body, .. } = tree.node(node);
    let head = INODE_BYTES + attributes.xattr_bytes();
    let (mut data, size): (Data, u64) = match body {
        Body::Directory(_) => (Data::Inline, directory_bytes(&names(tree, node, parent))),
        Body::Symlink(target) => (Data::Inline, target.len() as u64),
        Body::File { size, .. } if *size > 0 => (Data::Chunked, *size),
        _ => (Data::Plain, 0),
    };
    let tail = (size % BLOCK) as usize;
    if data == Data::Inline && (tail == 0 || head + tail > BLOCK_BYTES) {
        data = Data::Plain;
    }
    let (room, together) = match (data, body) {
        (Data::Inline, _) => (head + tail, head + tail),
        (_, Body::File { place, .. }) => (chunk_map_offset(head) + 8 * chunk_count(place), INODE_BYTES),
        _ => (head, INODE_BYTES),
    };
    let mut offset = end.next_multiple_of(SLOT_BYTES);
    if offset % BLOCK + together as u64 > BLOCK {
        offset = offset.next_multiple_of(BLOCK);
    }
    *end = offset + room as u64;
    let blocks = match data {
        Data::Chunked => 0,
        Data::Inline => size / BLOCK,
        Data::Plain => size.div_ceil(BLOCK),
    };
    plan.offsets[node as usize] = offset;
    plan.placed.push(Placed { node, parent, offset, data, size, block: 0, blocks: blocks as u32 });
    Ok(())
}

fn chunk_map_offset(head: usize) -> usize {
    head.next_multiple_of(8)
}

fn chunk_count(place: &Place) -> usize {
    match place {
        Place::Nowhere => 0,
        Place::Run(_) => 1,
        Place::Chunks(chunks) => chunks.len(),
    }
}

/// A directory's names with `.` and `..`, in the order of bytes.
fn names(tree: &Tree, node: u32, parent: u32) -> Vec<(&[u8], u32)> {
    let mut names: Vec<(&[u8], u32)> = vec![(b".", node), (b"..", parent)];
    if let Body::Directory(children) = &tree.node(node).body {
        names.extend(children.iter().map(|(name, child)| (&**name, *child)));
    }
    names.sort_unstable();
    names
}

/// The names that fit into each block, in turn.
fn per_block<'a, 'n>(names: &'a [(&'n [u8], u32)]) -> impl Iterator<Item = &'a [(&'n [u8], u32)]> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let mut used = 0;
        let fits = rest.iter().take_while(|(name, _)| {
            used += DIRENT_BYTES + name.len();
            used <= BLOCK_BYTES
        });
        let (block, after) = rest.split_at(fits.count());
        rest = after;
        (!block.is_empty()).then_some(block)
    })
}

fn used(block: &[(&[u8], u32)]) -> usize {
    block.iter().map(|(name, _)| DIRENT_BYTES + name.len()).sum()
}

fn directory_bytes(names: &[(&[u8], u32)]) -> u64 {
    let (mut blocks, mut last) = (0, 0);
    for block in per_block(names) {
        blocks += 1;
        last = used(block) as u64;
    }
    (blocks - 1) * BLOCK + last
}

/// Counts what it writes, and pads with zeros up to a place.
struct Sink<'a> {
    out: BufWriter<&'a File>,
    at: u64,
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }
    fn pad_to(&mut self, place: u64) -> std::io::Result<()> {
        debug_assert!(self.at <= place, "places overlap");
        let mut missing = place.saturating_sub(self.at) as usize;
        while missing > 0 {
            let n = missing.min(BLOCK_BYTES);
            self.put(&[0; BLOCK_BYTES][..n])?;
            missing -= n;
        }
        Ok(())
    }
}

fn write(tree: &Tree, plan: &Plan, meta: &File) -> std::io::Result<()> {
    let mut sink = Sink { out: BufWriter::with_capacity(256 << 10, meta), at: 0 };
    for (number, placed) in plan.placed.iter().enumerate() {
        sink.pad_to(placed.offset)?;
        write_inode(tree, plan, placed, number, &mut sink)?;
    }
    for placed in plan.placed.iter().filter(|placed| placed.blocks > 0) {
        sink.pad_to(u64::from(placed.block) * BLOCK)?;
        match &tree.node(placed.node).body {
            Body::Directory(_) => {
                let names = names(tree, placed.node, placed.parent);
                for block in per_block(&names).take(placed.blocks as usize) {
                    sink.put(&dirents(tree, plan, block))?;
                    sink.pad_to(sink.at.next_multiple_of(BLOCK))?;
                }
            }
            Body::Symlink(target) => sink.put(target)?,
            _ => {}
        }
    }
    sink.pad_to(u64::from(plan.blocks) * BLOCK)?;
    sink.out.flush()
}

fn write_inode(
    tree: &Tree,
    plan: &Plan,
    placed: &Placed,
    number: usize,
    sink: &mut Sink<'_>,
) -> std::io::Result<()> {
    let Node { attributes, body, links } = tree.node(placed.node);
    let union = match body {
        Body::Device { rdev, .. } => *rdev,
        Body::File { size: 0, .. } => 0,
        Body::File { size, place } => chunk_union(*size, place)?,
        _ => placed.block,
    };
    let inode = Inode {
        data: placed.data,
        xattr_bytes: attributes.xattr_bytes(),
        mode: body.types().1 | attributes.mode,
        size: placed.size,
        union,
        ino: number as u32 + 1,
        uid: attributes.uid,
        gid: attributes.gid,
        mtime_s: attributes.mtime_s,
        mtime_ns: attributes.mtime_ns,
        links: *links,
    };
    sink.put(&inode.encode())?;
    sink.put(&attributes.encode_xattrs())?;
    match body {
        Body::File { place, .. } => write_chunk_map(place, sink),
        Body::Symlink(target) if placed.data == Data::Inline => sink.put(target),
        Body::Directory(_) if placed.data == Data::Inline => {
            let names = names(tree, placed.node, placed.parent);
            match per_block(&names).last() {
                Some(block) => sink.put(&dirents(tree, plan, block)),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn chunk_union(size: u64, place: &Place) -> std::io::Result<u32> {
    let chunk = if matches!(place, Place::Chunks(_)) { CHUNK_BYTES as u64 } else { size };
    chunk_format(chunk).map_err(Error::into_io)
}

fn write_chunk_map(place: &Place, sink: &mut Sink<'_>) -> std::io::Result<()> {
    sink.pad_to(sink.at.next_multiple_of(8))?;
    match place {
        Place::Nowhere => Ok(()),
        Place::Run(block) => sink.put(&chunk_index(*block)),
        Place::Chunks(chunks) => chunks.iter().try_for_each(|block| sink.put(&chunk_index(*block))),
    }
}

/// One block's dirents, then their names; not padded.
fn dirents(tree: &Tree, plan: &Plan, block: &[(&[u8], u32)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK_BYTES);
    let mut name_offset = block.len() * DIRENT_BYTES;
    for (name, node) in block {
        let nid = plan.offsets[*node as usize] / SLOT_BYTES;
        out.extend(dirent(nid, name_offset as u16, tree.node(*node).body.types().0));
        name_offset += name.len();
    }
    block.iter().for_each(|(name, _)| out.extend_from_slice(name));
    out
}

/// The superblock is written last: its uuid comes from the content, its checksum covers block 0.
fn finish_block_0(plan: &Plan, blob: &Finished, meta: &File) -> std::io::Result<()> {
    let mut block = [0; BLOCK_BYTES];
    meta.read_exact_at(&mut block, 0)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&block).update(blob.hash.as_bytes());
    hash_from(meta, BLOCK, &mut hasher)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    let mut tag = [0; 64];
    tag.copy_from_slice(blob.hash.to_hex().as_bytes());
    // The root is placed first: in block 0, or in block 1 where its names do not fit.
    let root_nid = plan.offsets[ROOT as usize] / SLOT_BYTES;
    Super {
        root_nid: root_nid as u16,
        inodes: plan.placed.len() as u64,
        blocks: plan.blocks,
        uuid: uuid::Builder::from_custom_bytes(uuid).into_uuid().into_bytes(),
        device: (blob.blocks > 0).then_some((blob.blocks, tag)),
    }
    .write(&mut block);
    meta.write_all_at(&block, 0)
}
