//! The numbers of a run: lines for `xtask`, a table with the budgets for people.

use std::time::Duration;

/// A promised number: the key that must meet it.
struct Budget {
    key: &'static str,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

/// DESIGN.md, section 4.
const BUDGETS: [Budget; 20] = [
    Budget { key: "create.first_exec_ms_p50", bound: AtMost(8.0) },
    Budget { key: "create.first_exec_ms_p99", bound: AtMost(50.0) },
    Budget { key: "create.sustained_4_per_s", bound: AtLeast(200.0) },
    Budget { key: "exec.true_ms_p50", bound: AtMost(3.0) },
    Budget { key: "exec.true_ms_p99", bound: AtMost(10.0) },
    Budget { key: "idle.all_mb", bound: AtMost(1.5) },
    Budget { key: "file.up_mb_per_s", bound: AtLeast(500.0) },
    Budget { key: "file.down_mb_per_s", bound: AtLeast(500.0) },
    Budget { key: "stream.mb_per_s", bound: AtLeast(300.0) },
    Budget { key: "disk.rollback_ms_p50", bound: AtMost(20.0) },
    Budget { key: "disk.fork_16_ms_p50", bound: AtMost(500.0) },
    Budget { key: "disk.pack_diff_10mb_ms_p50", bound: AtMost(300.0) },
    Budget { key: "store.cold_fetched_percent", bound: AtMost(3.0) },
    Budget { key: "ratio.eager_over_cold", bound: AtLeast(5.0) },
    Budget { key: "ratio.untraced_over_traced", bound: AtLeast(1.5) },
    Budget { key: "store.suite_writes_fewer_percent", bound: AtLeast(57.0) },
    Budget { key: "ratio.read_4k_over_local", bound: AtMost(1.3) },
    Budget { key: "ratio.import_over_tar_x", bound: AtMost(1.5) },
    Budget { key: "image.pack_diff_10mb_of_5gb_ms_p50", bound: AtMost(300.0) },
    Budget { key: "image.cache_100_over_1_ratio", bound: AtMost(1.1) },
];

/// Collects and prints.
#[derive(Default)]
pub struct Report(Vec<(String, f64)>);

impl Report {
    /// One number; the line is printed at once, so that an interrupted run has told what it knew.
    pub fn put(&mut self, key: impl Into<String>, value: f64) {
        let key = key.into();
        println!("bench: {key} {value:.3}");
        self.0.push((key, value));
    }

    /// min, p50, p90, p99 in milliseconds, and how many.
    pub fn put_ms(&mut self, key: &str, samples: &[Duration]) {
        let mut ms: Vec<f64> = samples.iter().map(|d| d.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let Some(min) = ms.first() else { return };
        self.put(format!("{key}_ms_min"), *min);
        for percent in [50, 90, 99] {
            self.put(format!("{key}_ms_p{percent}"), rank(&ms, percent));
        }
        self.put(format!("{key}_runs"), ms.len() as f64);
    }

    pub fn get(&self, key: &str) -> Option<f64> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| *value)
    }

    /// `of / to`, where both are known.
    pub fn put_ratio(&mut self, key: &str, of: &str, to: &str) {
        if let (Some(of), Some(to)) = (self.get(of), self.get(to))
            && to > 0.0
        {
            self.put(key, of / to);
        }
    }

    /// What was promised, what was measured.
    pub fn table(&self) -> String {
        let mut text = format!("{:<32} {:>10} {:>12}  verdict\n", "key", "measured", "budget");
        for Budget { key, bound } in &BUDGETS {
            let Some(value) = self.get(key) else { continue };
            let (sign, budget, met) = match bound {
                AtMost(most) => ("<=", *most, value <= *most),
                AtLeast(least) => (">=", *least, value >= *least),
            };
            let verdict = if met { "met" } else { "MISSED" };
            let percent = (value / budget - 1.0) * 100.0;
            text +=
                &format!("{key:<32} {value:>10.2} {sign:>4} {budget:>7.1}  {verdict} ({percent:+.0} %)\n");
        }
        text
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
    fn percentiles_are_values_that_were_measured() {
        let mut report = Report::default();
        let samples: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        report.put_ms("x", &samples);
        let of = |key: &str| report.get(key).unwrap();
        assert_eq!((of("x_ms_min"), of("x_ms_p50"), of("x_ms_p99"), of("x_runs")), (1.0, 50.0, 99.0, 100.0));
        report.put_ms("none", &[]);
        assert!(report.get("none_runs").is_none());
    }

    #[test]
    fn the_table_tells_what_was_missed_and_by_how_much() {
        let mut report = Report::default();
        report.put("exec.true_ms_p50", 6.0);
        report.put("file.up_mb_per_s", 1000.0);
        let table = report.table();
        assert!(table.contains("MISSED (+100 %)"), "{table}");
        assert!(table.contains("met (+100 %)"), "{table}");
        report.put_ratio("r", "exec.true_ms_p50", "file.up_mb_per_s");
        assert_eq!(report.get("r"), Some(0.006));
    }
}
