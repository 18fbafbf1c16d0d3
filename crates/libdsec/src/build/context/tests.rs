//! Sources, patterns, what is hidden, and ways out.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

fn tree(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn names(source: &Source) -> Vec<&str> {
    source.entries.iter().map(|entry| std::str::from_utf8(&entry.name).unwrap()).collect()
}

fn hash_of(context: &Context, word: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    context.find(word).unwrap().iter().for_each(|source| source.hash_into(&mut hasher));
    hasher.finalize()
}

#[test]
fn sources_are_found_and_hidden_ones_are_not_there() {
    let dir = tree(&[
        ("a.txt", "a"),
        ("b.txt", "b"),
        ("src/x/y", "y"),
        ("src/z", "z"),
        ("secret/key", "k"),
        ("secret/public", "p"),
    ]);
    let context = Context::open(dir.path(), "b.txt\nsecret/*\n!secret/public\nsrc/x").unwrap();
    let found = context.find("/src/").unwrap();
    assert_eq!((found.len(), found[0].is_directory, names(&found[0])), (1, true, vec!["z"]));
    let found = context.find("*.txt").unwrap();
    assert_eq!((found.len(), found[0].name.as_slice(), names(&found[0])), (1, &b"a.txt"[..], vec![""]));
    assert_eq!(names(&context.find("secret").unwrap()[0]), ["public"]);
    assert_eq!(names(&context.find(".").unwrap()[0]), ["a.txt", "secret", "secret/public", "src", "src/z"]);
    for word in ["b.txt", "secret/key", "nope", "n*", "a.txt/x", "src/x"] {
        assert_eq!(context.find(word).unwrap_err().code, Code::NotFound, "{word}");
    }
}

#[test]
fn nothing_outside_is_read() {
    let outside = tree(&[("secret", "s")]);
    let dir = tree(&[("in/file", "x")]);
    symlink(outside.path(), dir.path().join("way")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("in/out")).unwrap();
    symlink("in/file", dir.path().join("near")).unwrap();
    let context = Context::open(dir.path(), "").unwrap();
    for word in ["../x", "in/../../x", "way/secret", "way", "in/out", "w*"] {
        assert_eq!(context.find(word).unwrap_err().code, Code::InvalidArgument, "{word}");
    }
    // Within a directory a symlink is copied as it is; as a source it is followed, within the context.
    let below = &context.find("in").unwrap()[0];
    assert!(matches!(&below.entries[1].what, What::Symlink(to) if to.ends_with("secret")));
    let near = &context.find("near").unwrap()[0];
    assert_eq!(near.name, b"near");
    assert!(matches!(near.entries[0].what, What::File { size: 1, .. }));
}

#[test]
fn the_hash_is_of_what_a_layer_would_show() {
    use std::os::unix::fs::PermissionsExt;
    let (one, two) = (tree(&[("d/a", "1"), ("d/b", "2")]), tree(&[("d/b", "2"), ("d/a", "1")]));
    let (one, two) =
        ((Context::open(one.path(), "").unwrap(), one), (Context::open(two.path(), "").unwrap(), two));
    assert_eq!(hash_of(&one.0, "d"), hash_of(&two.0, "d"), "order and times are nothing");
    let before = hash_of(&one.0, "d");
    fs::set_permissions(one.1.path().join("d/a"), fs::Permissions::from_mode(0o755)).unwrap();
    let after = hash_of(&one.0, "d");
    assert_ne!(before, after, "a mode");
    fs::write(one.1.path().join("d/a"), "3").unwrap();
    assert_ne!(after, hash_of(&one.0, "d"), "a byte");
    assert_ne!(hash_of(&two.0, "d/a"), hash_of(&two.0, "d/b"));
}
