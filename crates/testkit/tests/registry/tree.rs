//! File trees: as layers laid over each other say, and as a sandbox shows.

use std::{collections::BTreeMap, io::Read};

use libdsec::Sandbox;
use serde::{Deserialize, Serialize};

use crate::layout::sha256;

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `f`, `d`, `l`
    pub kind: String,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    /// sha256 of a file, target of a symlink.
    pub content: String,
    /// The first name of the same file, by order; its own where it has one name.
    pub first: String,
    pub xattrs: BTreeMap<String, String>,
}

pub type Tree = BTreeMap<String, Facts>;

/// What a sandbox puts there itself, or mounts over.
const OWN: [&str; 10] = [
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "etc/hosts",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/mtab",
    "var/tmp",
];

/// The layers, lowest first, as the image specification lays them over each other.
pub fn of_layers(layers: &[Vec<u8>]) -> Tree {
    let mut tree = Tree::new();
    for layer in layers {
        let below: Vec<String> = tree.keys().cloned().collect();
        let mut here: std::collections::BTreeSet<String> = Default::default();
        let mut archive = tar::Archive::new(&layer[..]);
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = name_of(&entry.path().unwrap().to_string_lossy());
            let (parent, last) = name.rsplit_once('/').unwrap_or(("", &name));
            let inside =
                |name: &str, of: &str| name.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
            if last == ".wh..wh..opq" {
                below
                    .iter()
                    .filter(|n| inside(n, parent) && !here.contains(*n))
                    .for_each(|n| drop(tree.remove(n)));
            } else if let Some(gone) = last.strip_prefix(".wh.") {
                let gone = format!("{parent}/{gone}");
                below.iter().filter(|n| **n == gone || inside(n, &gone)).for_each(|n| drop(tree.remove(n)));
            } else if !name.is_empty() {
                let facts = facts_of(&mut entry, &name, &tree);
                here.insert(name.clone());
                tree.insert(name, facts);
            }
        }
    }
    with_firsts(tree)
}

fn name_of(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

fn facts_of(entry: &mut tar::Entry<'_, &[u8]>, name: &str, tree: &Tree) -> Facts {
    let mut xattrs = BTreeMap::new();
    for record in entry.pax_extensions().unwrap().into_iter().flatten().flatten() {
        if let Some(key) = record.key().unwrap().strip_prefix("SCHILY.xattr.") {
            xattrs.insert(key.to_owned(), hex(record.value_bytes()));
        }
    }
    let link = entry.link_name().unwrap().map(|link| link.to_string_lossy().into_owned()).unwrap_or_default();
    let header = entry.header();
    let kind = header.entry_type();
    if kind == tar::EntryType::Link {
        let first = name_of(&link);
        return Facts { first: first.clone(), ..tree[&first].clone() };
    }
    let (mode, uid, gid) = (header.mode().unwrap() & 0o7777, header.uid().unwrap(), header.gid().unwrap());
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).unwrap();
    let (kind, content) = match kind {
        tar::EntryType::Directory => ("d", String::new()),
        tar::EntryType::Symlink => ("l", link),
        _ => ("f", sha256(&bytes)),
    };
    // A symlink's mode means nothing.
    let mode = if kind == "l" { 0o777 } else { mode };
    Facts { kind: kind.into(), mode, uid, gid, content, first: name.to_owned(), xattrs }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of one file get the first of them.
fn with_firsts(mut tree: Tree) -> Tree {
    let mut firsts: BTreeMap<String, String> = BTreeMap::new();
    for (name, facts) in &tree {
        firsts.entry(facts.first.clone()).or_insert_with(|| name.clone());
    }
    tree.values_mut().for_each(|facts| facts.first.clone_from(&firsts[&facts.first]));
    tree.retain(|name, _| !is_own(name));
    tree
}

fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

const WALK: &str = r#"
import hashlib, json, os, stat, sys
tree, files = {}, {}
for top, dirs, names in os.walk(b"/"):
    dirs[:] = [d for d in dirs if os.path.join(top, d) not in (b"/proc", b"/sys", b"/dev", b"/run", b"/tmp")]
    for name in dirs + names:
        path = os.path.join(top, name)
        s = os.lstat(path)
        text = os.fsdecode(path)[1:]
        kind, content = "?", ""
        if stat.S_ISDIR(s.st_mode): kind = "d"
        elif stat.S_ISLNK(s.st_mode): kind, content = "l", os.fsdecode(os.readlink(path))
        elif stat.S_ISREG(s.st_mode): kind, content = "f", hashlib.sha256(open(path, "rb").read()).hexdigest()
        first = text if kind == "d" or s.st_nlink == 1 else files.setdefault((s.st_dev, s.st_ino), text)
        names = os.listxattr(path, follow_symlinks=False)
        xattrs = {x: os.getxattr(path, x, follow_symlinks=False).hex() for x in names}
        mode = 0o777 if kind == "l" else stat.S_IMODE(s.st_mode)
        tree[text] = dict(kind=kind, mode=mode, uid=s.st_uid, gid=s.st_gid, content=content, first=first, xattrs=xattrs)
json.dump(tree, sys.stdout)
"#;

/// All that root sees inside.
pub async fn of_sandbox(sandbox: &Sandbox) -> Tree {
    let out = sandbox.exec(["python3", "-c", WALK]).output().await.unwrap();
    assert!(out.success(), "{}", out.stderr_text());
    let mut tree: Tree = serde_json::from_str(&out.stdout_text()).unwrap();
    // The first name by the order of names, not of the walk.
    let mut firsts: BTreeMap<String, String> = BTreeMap::new();
    for (name, facts) in &tree {
        firsts.entry(facts.first.clone()).or_insert_with(|| name.clone());
    }
    tree.values_mut().for_each(|facts| facts.first.clone_from(&firsts[&facts.first]));
    tree.retain(|name, _| !is_own(name));
    tree
}

/// Panics with the first differences.
pub fn assert_equal(expected: &Tree, found: &Tree) {
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differences: Vec<_> = names
        .into_iter()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| format!("{name}:\n  expected {:?}\n  found    {:?}", expected.get(name), found.get(name)))
        .collect();
    assert!(expected.len() > 5000, "{} entries", expected.len());
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences[..differences.len().min(10)].join("\n")
    );
}
