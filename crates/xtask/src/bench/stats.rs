//! Percentiles of samples, nearest rank: each is a value that was really measured.

/// What a report says of a set of samples.
#[derive(Debug, PartialEq)]
pub struct Summary {
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Summary {
    /// None for no samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let min = *sorted.first()?;
        Some(Self { min, p50: rank(&sorted, 50), p90: rank(&sorted, 90), p99: rank(&sorted, 99) })
    }
}

/// The smallest sample that at least `percent` of all are not above.
fn rank(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&samples), Some(Summary { min: 1.0, p50: 50.0, p90: 90.0, p99: 99.0 }));
        assert_eq!(Summary::of(&[7.0]), Some(Summary { min: 7.0, p50: 7.0, p90: 7.0, p99: 7.0 }));
        assert_eq!(Summary::of(&[]), None);
    }
}
