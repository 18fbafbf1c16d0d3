//! A layer of a test's own: any bytes, digested as the image crate does it.

use storage::publish::Layer;

pub struct Made {
    pub layer: Layer,
    pub meta: Vec<u8>,
    pub blob: Vec<u8>,
    _dir: tempfile::TempDir,
}

/// With a blob of `size` bytes, a half of which compresses.
pub fn made(size: usize) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let mut state = size as u64 | 1;
    let blob: Vec<u8> = (0..size)
        .map(|i| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if i / 4096 % 2 == 0 { (state >> 33) as u8 } else { (i / 4096) as u8 }
        })
        .collect();
    let meta = format!("the meta of {size} bytes").repeat(100).into_bytes();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&meta).update(blake3::hash(&blob).as_bytes());
    let (meta_path, blob_path) = (dir.path().join("meta"), dir.path().join("blob"));
    std::fs::write(&meta_path, &meta).unwrap();
    std::fs::write(&blob_path, &blob).unwrap();
    let layer = Layer {
        digest: format!("blake3:{}", hasher.finalize().to_hex()),
        files: 1,
        meta_bytes: meta.len() as u64,
        blob_bytes: size as u64,
        data_bytes: size as u64,
        meta: meta_path,
        blob: (size > 0).then_some(blob_path),
    };
    Made { layer, meta, blob, _dir: dir }
}
