//! Several layers become one that shows the same: fewer mounts, and fewer directories for overlayfs to look into.
//!
//! The bytes of files are copied, by streaming, into a blob of the new layer's own: so a layer stays two files under one
//! digest, which can be removed without a look at others, and what upper layers hide takes no room any more. (EROFS could
//! name the blobs of several layers instead; then a blob would live as long as any layer that points into it.)
//!
//! Invariant: the same layers make the same bytes.

use std::{ops::Range, path::Path};

use crate::{
    Limits,
    erofs::read::Reader,
    error::Result,
    import::{Built, Layer},
    union::{Hides, Union},
};

/// What may be under the layers that are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// Nothing: whiteouts have nothing to hide, and go.
    Nothing,
    /// Other layers, of the same image or of a base under it.
    Something,
}

/// Merges `layers`, lowest first, into a new directory of `scratch` named by `number`.
pub fn merge(
    layers: &[Reader],
    below: Below,
    limits: &Limits,
    scratch: &Path,
    number: usize,
) -> Result<Built> {
    let hides = match below {
        Below::Nothing => Hides::None,
        Below::Something => Hides::Needed,
    };
    let mut layer = Layer::create(scratch, number, limits)?;
    let mut union = Union::new(layers, hides, limits);
    while let Some(item) = union.next_item()? {
        layer.writer.add(item.entry.clone(), &mut union.data(&item))?;
    }
    layer.finish()
}

/// Which neighbours become one, from the lowest up: as many as are within `threshold_bytes` together. `sizes`: of the
/// layers, lowest first. Every layer is in one range.
pub fn plan_merge(sizes: &[u64], threshold_bytes: u64) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut together = 0u64;
    for (number, size) in sizes.iter().enumerate() {
        let with = together.checked_add(*size).filter(|with| *with <= threshold_bytes);
        match (ranges.last_mut(), with) {
            (Some(range), Some(with)) => {
                range.end = number + 1;
                together = with;
            }
            _ => {
                ranges.push(number..number + 1);
                together = *size;
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_merged_up_to_the_threshold() {
        assert_eq!(plan_merge(&[], 10), Vec::<Range<usize>>::new());
        assert_eq!(plan_merge(&[4, 4, 4, 9], 12), [0..3, 3..4]);
        assert_eq!(plan_merge(&[4, 4, 4], 11), [0..2, 2..3]);
        assert_eq!(plan_merge(&[20, 1, 1, 20, 1], 10), [0..1, 1..3, 3..4, 4..5]);
        assert_eq!(plan_merge(&[u64::MAX, u64::MAX], u64::MAX), [0..1, 1..2]);
        assert_eq!(plan_merge(&[1, 1], 0), [0..1, 1..2]);
    }
}
