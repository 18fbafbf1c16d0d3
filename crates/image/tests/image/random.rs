//! Random trees: on disk, through GNU tar and through the directory importer, mounted, compared.

use std::{fs, os::unix::fs as unix, path::PathBuf};

use proptest::prelude::*;

use crate::*;

#[derive(Debug, Clone)]
enum Node {
    File { seed: u8, size: usize },
    Directory,
    Symlink(String),
    Link(prop::sample::Index),
}

#[derive(Debug, Clone)]
pub struct Plan {
    parent: prop::sample::Index,
    name: String,
    node: Node,
    mode: u32,
    owner: (u16, u16),
    xattr: Option<Vec<u8>>,
}

fn node() -> impl Strategy<Value = Node> {
    let size = prop_oneof![
        0usize..20,
        4090usize..4100,
        0usize..20_000,
        262_140usize..262_150,
        500_000usize..800_000
    ];
    prop_oneof![
        4 => (0u8..4, size).prop_map(|(seed, size)| Node::File { seed, size }),
        3 => Just(Node::Directory),
        1 => "[a-z/.]{1,300}".prop_map(Node::Symlink),
        1 => any::<prop::sample::Index>().prop_map(Node::Link),
    ]
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let name = prop_oneof!["[a-c.+ -]{1,3}", "[a-z]{200,255}", "\\PC{1,20}"];
    let owner = (any::<u16>(), any::<u16>());
    let xattr = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..900));
    (any::<prop::sample::Index>(), name, node(), 0u32..0o10000, owner, xattr)
        .prop_map(|(parent, name, node, mode, owner, xattr)| Plan { parent, name, node, mode, owner, xattr })
}

pub fn build(root: &Path, plans: &[Plan]) {
    fs::create_dir(root).unwrap();
    let mut directories = vec![root.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for plan in plans {
        let name = plan.name.replace(['/', '\0'], "_");
        let path = directories[plan.parent.index(directories.len())].join(name);
        let is_usable = !path.ends_with("..") && path.file_name().is_some_and(|name| name.len() <= 255);
        if !is_usable || fs::symlink_metadata(&path).is_ok() || plan.name == "." {
            continue;
        }
        match &plan.node {
            Node::File { seed, size } => {
                let data: Vec<u8> =
                    (0..*size).map(|i| if *seed == 0 { 0 } else { (i / 7) as u8 ^ *seed }).collect();
                fs::write(&path, data).unwrap();
                files.push(path.clone());
            }
            Node::Directory => {
                fs::create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            Node::Symlink(target) => unix::symlink(target, &path).unwrap(),
            Node::Link(file) => {
                if !files.is_empty() {
                    fs::hard_link(&files[file.index(files.len())], &path).unwrap();
                }
                continue;
            }
        }
        unix::lchown(&path, Some(plan.owner.0.into()), Some(plan.owner.1.into())).unwrap();
        if !matches!(plan.node, Node::Symlink(_)) {
            fs::set_permissions(&path, unix::PermissionsExt::from_mode(plan.mode)).unwrap();
            if let Some(value) = &plan.xattr {
                xattr::set(&path, "user.x", value).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_show_the_same(plans in proptest::collection::vec(plan(), 0..60)) {
        let dir = scratch();
        let source = dir.path().join("source");
        build(&source, &plans);
        assert_shows(&import_dir(&query(), &source, dir.path()).layers[0], &source);
        let out = scratch();
        let bytes = gnu_tar(&source, &["--format=posix"]);
        assert_shows(&import(&query(), &bytes, out.path()).unwrap().layers[0], &source);
    }
}
