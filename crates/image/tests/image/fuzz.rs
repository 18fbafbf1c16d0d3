//! Any bytes go into the importer; it answers or refuses, and what it accepts the kernel mounts.

use image::{Limits, import::import_archive};
use proptest::prelude::*;

use crate::{archive::Tar, *};

/// The fuzz target: no panic, no endless loop, bounded memory, an image that mounts.
pub fn import_any(bytes: &[u8]) {
    let dir = scratch();
    let limits = Limits { entries_max: 1000, tree_bytes_max: 1 << 20, bytes_max: 16 << 20 };
    if let Ok(imported) = import_archive(&query(), &limits, bytes, dir.path()) {
        for layer in &imported.layers {
            snapshot::take(&kernel::mount(&layer.meta(), layer.blob().as_deref()).path());
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let map = b"2\n0\n4\n8192\n4\n";
    let data = [&map[..], &vec![0; 512 - map.len()], b"datadata"].concat();
    let data = String::from_utf8(data).unwrap();
    let sparse =
        [("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9000")];
    let tar = Tar::new()
        .dir("d")
        .file("d/f", "data")
        .pax(&[("SCHILY.xattr.user.x", b"y"), ("mtime", b"1.5"), ("path", b"long")])
        .file("g", "more")
        .hardlink("h", "d/f")
        .symlink("s", "d")
        .pax(&sparse)
        .file("sparse", &data);
    let image =
        oci::Layout::new(vec![Tar::new().file("a", "1").bytes(), Tar::new().file(".wh.a", "").bytes()]);
    vec![tar.bytes(), image.bytes()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        import_any(&bytes);
    }

    /// Real archives with a few bytes changed and the checksums made right again, so that more than the checksum is
    /// tested.
    #[test]
    fn damaged_archives(
        seed in 0usize..2,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = seeds().swap_remove(seed);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for header in bytes.chunks_exact_mut(512) {
            if &header[257..262] == b"ustar" {
                header[148..156].fill(b' ');
                let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
                header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        import_any(&bytes);
    }
}

#[test]
fn the_seeds_themselves_are_accepted() {
    for seed in seeds() {
        import(&query(), &seed, scratch().path()).unwrap();
    }
}
