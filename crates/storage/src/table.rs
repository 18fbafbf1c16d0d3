//! What makes a chunk believed: blake3 is a tree, and a chunk is a subtree of it.
//!
//! Each chunk has a chaining value. The values of all chunks merge to the hash of the whole blob, which is part of the
//! layer's digest; so a table is checked once, without a byte of the blob, and then each chunk by itself.
//!
//! Invariant: `CHUNK_BYTES` is a power of two and at least 1024, or chunks would be no subtrees.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Small enough that a random 4 KiB read costs little, large enough to compress.
pub const CHUNK_BYTES: usize = 256 << 10;
const _: () = assert!(CHUNK_BYTES.is_power_of_two() && CHUNK_BYTES >= 1024);

/// The chaining value of a chunk; of an only chunk, its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(pub [u8; 32]);

impl Value {
    /// Of the chunk at `index` of a blob of `count` chunks.
    pub fn of(chunk: &[u8], index: u64, count: usize) -> Self {
        if count == 1 {
            return Self(*blake3::hash(chunk).as_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index * CHUNK_BYTES as u64);
        hasher.update(chunk);
        Self(hasher.finalize_non_root())
    }

    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.hex())
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(text.as_bytes()).map_err(D::Error::custom)?;
        Ok(Self(*hash.as_bytes()))
    }
}

/// The hash of the blob that has chunks of these values.
pub fn root(values: &[Value]) -> blake3::Hash {
    match values {
        [] => blake3::hash(&[]),
        [only] => blake3::Hash::from_bytes(only.0),
        _ => {
            let (left, right) = values.split_at(left_count(values.len()));
            merge_subtrees_root(&inner(left), &inner(right), Mode::Hash)
        }
    }
}

fn inner(values: &[Value]) -> ChainingValue {
    match values {
        [only] => only.0,
        _ => {
            let (left, right) = values.split_at(left_count(values.len()));
            merge_subtrees_non_root(&inner(left), &inner(right), Mode::Hash)
        }
    }
}

/// The largest power of two below `count`: the left side of a blake3 tree is full.
fn left_count(count: usize) -> usize {
    1 << (usize::BITS - 1 - (count - 1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_merge_to_the_hash_of_the_whole() {
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 9 + 5000).map(|i| (i * 31 % 251) as u8).collect();
        for chunks in [0, 1, 2, 3, 4, 5, 7, 8, 9] {
            for extra in [0, 1, 4096] {
                let blob = &bytes[..chunks * CHUNK_BYTES + extra];
                let count = blob.len().div_ceil(CHUNK_BYTES);
                let cut = blob.chunks(CHUNK_BYTES).enumerate();
                let values: Vec<Value> = cut.map(|(i, c)| Value::of(c, i as u64, count)).collect();
                assert_eq!(root(&values), blake3::hash(blob), "{chunks} chunks and {extra}");
            }
        }
    }

    #[test]
    fn a_value_knows_its_place() {
        let chunk = vec![7; CHUNK_BYTES];
        assert_ne!(Value::of(&chunk, 0, 2), Value::of(&chunk, 1, 2));
    }
}
