//! What is on the disk of a catalogue, and what of it may never be there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use image::Catalogue;

use super::{
    Outcome, Step,
    operation::{Operation, Stage},
};
use crate::oci::sha256;

/// Digests by name and version.
pub type State = BTreeMap<String, String>;

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// The images of the catalogue under `dir`; none where there is no catalogue.
pub fn of(dir: &Path) -> State {
    let home = dir.join("catalogue");
    match home.exists() {
        true => images(&Catalogue::open(&home).unwrap()),
        false => State::new(),
    }
}

fn images(catalogue: &Catalogue) -> State {
    let name = |info: &api::image::ImageInfo| format!("{}:{}", info.name, info.version);
    catalogue.list().iter().map(|info| (name(info), info.digest.clone())).collect()
}

/// Before, or after, and after where it was acknowledged; whole either way; and done again it is after.
pub fn assert_settled(
    operation: Operation,
    stage: &Stage<'_>,
    outcome: &Outcome,
    (before, after): (&State, &State),
    step: &Step,
) {
    let about = format!("{operation:?}, killed at {step:?}, {outcome:?}");
    let home = stage.dir.join("catalogue");
    if outcome.killed || home.exists() {
        let catalogue = Catalogue::open(&home).unwrap_or_else(|e| panic!("{about}: {e}"));
        let found = images(&catalogue);
        assert_whole(&home, &catalogue, &about);
        let between = operation == Operation::RemoveByDigest
            && found.iter().all(|one| before.get(one.0) == Some(one.1));
        assert!(
            found == *after || (!outcome.acknowledged && (found == *before || between)),
            "{about}: {found:?}"
        );
        assert!(
            found.keys().any(|name| name.starts_with("bystander")) || operation == Operation::Open,
            "{about}"
        );
    }
    operation.act(stage).unwrap_or_else(|e| panic!("{about}, again: {e}"));
    let catalogue = Catalogue::open(&home).unwrap();
    assert_eq!(images(&catalogue), *after, "{about}: done again");
    assert_whole(&home, &catalogue, &about);
    catalogue.sweep(&|_| false).unwrap();
    assert_nothing_else(&home, &catalogue, &about);
}

/// All that has a name is complete, whether an image leads to it or not.
fn assert_whole(home: &Path, catalogue: &Catalogue, about: &str) {
    assert_eq!(names(&home.join("tmp")), BTreeSet::new(), "{about}: scratch directories");
    let mut on_disk = 0;
    for name in names(&home.join("images")) {
        let versions = names(&home.join("images").join(&name));
        assert!(!versions.is_empty(), "{about}: {name} has no version");
        on_disk += versions.len();
        for version in versions {
            let version = version.strip_suffix(".json").unwrap_or_else(|| panic!("{about}: {version}"));
            catalogue.resolve(&format!("{name}:{version}"), None).unwrap_or_else(|e| panic!("{about}: {e}"));
        }
    }
    assert_eq!(on_disk, catalogue.list().len(), "{about}: an image was left out");
    for layer in names(&home.join("layers")) {
        assert_eq!(digest(&home.join("layers").join(&layer)), layer, "{about}");
    }
    for record in names(&home.join("known")) {
        let (_, layer) = record.split_once('-').unwrap();
        assert!(home.join("layers").join(layer).is_dir(), "{about}: {record} is of a layer that is gone");
        let bytes = fs::read(home.join("known").join(&record)).unwrap();
        let (trace, hash) = bytes.split_at(bytes.len() - 32);
        assert!(blake3::hash(trace) == <[u8; 32]>::try_from(hash).unwrap(), "{about}: {record}");
    }
    for blob in names(&home.join("blobs")) {
        assert_eq!(sha256(&fs::read(home.join("blobs").join(&blob)).unwrap()), blob, "{about}");
    }
}

/// A layer's digest from its bytes, in hex.
fn digest(layer: &Path) -> String {
    let blob = fs::read(layer.join("data.blob")).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&fs::read(layer.join("meta.erofs")).unwrap());
    hasher.update(blake3::hash(&blob).as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// After a sweep, and with no pull that could come back for its blobs.
fn assert_nothing_else(home: &Path, catalogue: &Catalogue, about: &str) {
    let named = catalogue.list().into_iter().flat_map(|info| info.layers);
    let named: BTreeSet<String> = named.map(|digest| digest.replace("blake3:", "")).collect();
    assert_eq!(names(&home.join("layers")), named, "{about}: layers");
    assert_eq!(names(&home.join("tmp")), BTreeSet::new(), "{about}: scratch directories");
    assert_eq!(names(&home.join("blobs")), BTreeSet::new(), "{about}: blobs");
    assert_eq!(names(&home.join("environments")), BTreeSet::new(), "{about}: environments");
    let all = ["blobs", "environments", "images", "known", "layers", "lock", "tmp"];
    assert_eq!(names(home), all.map(String::from).into(), "{about}");
}
