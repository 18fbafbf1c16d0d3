//! Archives: any bytes are refused or give entries within their bounds; reading ends.
#![no_main]

use std::io::Read;

use image::tar::TarReader;
use libfuzzer_sys::fuzz_target;

/// A sparse file may claim any size; what it gives is bounded by its reader.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Headers only count when their checksum is right, which mutation seldom hits.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for header in bytes.chunks_exact_mut(512).filter(|header| &header[257..262] == b"ustar") {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}

fn read_all(bytes: &[u8]) {
    let mut reader = TarReader::new(bytes);
    let mut entries = 0;
    while let Ok(Some(entry)) = reader.next_entry() {
        entries += 1;
        assert!(entries <= bytes.len() / 512 + 1, "an entry takes a header");
        assert!(entry.path.len() <= bytes.len() && entry.link.len() <= bytes.len());
        let mut sink = [0; 4096];
        let mut read = 0;
        while read < READ_BYTES_MAX {
            match reader.read(&mut sink) {
                Ok(0) | Err(_) => break,
                Ok(count) => read += count as u64,
            }
        }
        assert!(read <= entry.size.max(READ_BYTES_MAX));
    }
}

fuzz_target!(|bytes: &[u8]| {
    read_all(bytes);
    read_all(&with_checksums(bytes));
});
