//! Layers: any bytes are refused, or are a tree that is read to its end within the bounds; nothing loops.
#![no_main]

use std::{fs, io::Read, path::PathBuf};

use image::{
    Error, Limits,
    erofs::{Kind, read::Reader},
    union::{Hides, Union},
};
use libfuzzer_sys::fuzz_target;

/// Where inodes and names are; what follows in an input is the blob.
const META_BYTES: usize = 8192;
/// A file may claim any size.
const READ_BYTES_MAX: u64 = 1 << 20;
const LIMITS: Limits = Limits { entries_max: 10_000, tree_bytes_max: 1 << 20, bytes_max: 64 << 20 };

/// The superblock only counts when its checksum is right, which mutation seldom hits.
fn with_checksum(meta: &mut [u8]) {
    if meta.len() >= 4096 {
        meta[1028..1032].fill(0);
        let sum = meta[1024..4096].iter().fold(!0u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
        });
        meta[1028..1032].copy_from_slice(&sum.to_le_bytes());
    }
}

/// In memory; one of each a process.
fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/dsec-fuzz-{}-{name}", std::process::id()))
}

fn read_all(meta: &[u8], blob: &[u8]) -> Result<u64, Error> {
    let (meta_path, blob_path) = (path("meta"), path("blob"));
    fs::write(&meta_path, meta).expect("memory for an input");
    fs::write(&blob_path, blob).expect("memory for an input");
    let reader = Reader::open(&meta_path, (!blob.is_empty()).then_some(&*blob_path));
    // A reader keeps what it has opened.
    let _ = (fs::remove_file(&meta_path), fs::remove_file(&blob_path));
    let layers = [reader?];
    let mut union = Union::new(&layers, Hides::All, &LIMITS);
    let mut entries = 0;
    while let Some(item) = union.next_item()? {
        entries += 1;
        assert!(entries <= LIMITS.entries_max, "more entries than the bound");
        assert!(item.entry.path.len() <= 4096, "a path longer than the system's");
        if !matches!(item.entry.kind, Kind::Hardlink(_)) {
            let mut data = Vec::new();
            // What is wrong in it is an error of the read.
            let _ = union.data(&item).take(READ_BYTES_MAX).read_to_end(&mut data);
        }
    }
    Ok(entries)
}

fuzz_target!(|bytes: &[u8]| {
    let (meta, blob) = bytes.split_at(bytes.len().min(META_BYTES));
    let mut meta = meta.to_vec();
    with_checksum(&mut meta);
    if let Err(error) = read_all(&meta, blob) {
        assert!(matches!(error, Error::Damaged(_) | Error::Refused(_)), "{error:?}");
    }
});
