//! Counts tests from what a test runner prints: the summaries of cargo test, nextest and pytest, and `skipped: <feature>` lines.

use std::{collections::BTreeSet, fmt};

/// How many tests did what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// What was missing where tests skipped themselves.
    pub features: BTreeSet<String>,
    /// Names of those that failed, to be told again at the end of a long output.
    pub failures: Vec<String>,
    /// Tests that skipped themselves: the runner counts them as passed.
    said_skipped: u64,
}

/// Of the names; the count has all.
const FAILURES_MAX: usize = 100;

impl Count {
    /// Takes one line of a runner's output.
    pub fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(feature) = line.strip_prefix("skipped: ") {
            self.features.insert(feature.trim().to_owned());
            self.said_skipped += 1;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.name_failure(name);
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.read_parts(rest.split_once(". ").map_or("", |(_, parts)| parts), ';');
        } else if line.starts_with("Summary [") {
            self.read_parts(line.split_once("run: ").map_or("", |(_, parts)| parts), ',');
        } else if let Some(name) = line.strip_prefix("FAILED ").filter(|name| name.contains("::")) {
            self.name_failure(name.split(" - ").next().unwrap_or(name));
        } else if let Some(parts) = pytest_summary(line) {
            self.read_parts(parts, ',');
        }
    }

    fn name_failure(&mut self, name: &str) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(name.trim().to_owned());
        }
    }

    /// `3 passed (1 slow), 2 failed`, however separated.
    fn read_parts(&mut self, parts: &str, separator: char) {
        for part in parts.split(separator) {
            let mut words = part.split_whitespace();
            let Some(number) = words.next().and_then(|n| n.parse::<u64>().ok()) else { continue };
            match words.next() {
                Some("passed") => self.passed += number,
                // "timed out", "exec failed"; a fixture of pytest that breaks is an error
                Some("failed" | "timed" | "exec" | "error" | "errors") => self.failed += number,
                Some("skipped" | "ignored") => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Moves the tests that skipped themselves from passed to skipped.
    pub fn settle(&mut self) {
        let moved = self.said_skipped.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
        self.said_skipped = 0;
    }

    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.features.extend(other.features.iter().cloned());
        self.failures.extend(other.failures.iter().cloned());
    }
}

/// `=== 1 failed, 3 passed in 0.12s ===`: what stands before the time. Other headings of pytest have none.
fn pytest_summary(line: &str) -> Option<&str> {
    let (parts, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    // Over a minute it ends in `(0:01:05)`.
    let seconds = time.split_whitespace().next()?.strip_suffix('s')?;
    let counted = parts.split(", ").all(|part| {
        let mut words = part.split(' ');
        words.next().is_some_and(|n| n.parse::<u64>().is_ok()) && words.count() == 1
    });
    (counted && seconds.parse::<f64>().is_ok()).then_some(parts)
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Count {
        let mut count = Count::default();
        text.lines().for_each(|line| count.read(line));
        count.settle();
        count
    }

    #[test]
    fn cargo_test_prints_one_summary_for_each_binary() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                    test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        assert_eq!(count(text).to_string(), "5 passed, 4 failed, 1 skipped");
        let named =
            count("test a::b ... ok\ntest a::c ... FAILED\ntest wide                    ... FAILED\n");
        assert_eq!(named.failures, ["a::c", "wide"]);
    }

    #[test]
    fn nextest_prints_one_summary() {
        assert_eq!(
            count("     Summary [   1.234s] 12 tests run: 9 passed (1 slow, 1 leaky), 1 failed, 1 timed out, 1 exec failed, 2 skipped").to_string(),
            "9 passed, 3 failed, 2 skipped"
        );
        assert_eq!(
            count("     Summary [   0.1s] 1 test run: 1 passed, 0 skipped").to_string(),
            "1 passed, 0 failed, 0 skipped"
        );
        assert_eq!(
            count("Summary [ 0.2s] 3/12 tests run: 2 passed, 1 failed, 0 skipped").to_string(),
            "2 passed, 1 failed, 0 skipped"
        );
    }

    #[test]
    fn pytest_prints_one_summary() {
        let text = "FAILED tests/py/test_a.py::test_b - AssertionError: x\n\
                    ==== 1 failed, 12 passed, 2 skipped, 3 warnings, 1 error in 65.21s (0:01:05) ====\n";
        let counted = count(text);
        assert_eq!(counted.to_string(), "12 passed, 2 failed, 2 skipped");
        assert_eq!(counted.failures, ["tests/py/test_a.py::test_b"]);
        assert_eq!(count("94 passed in 3.40s\n").to_string(), "94 passed, 0 failed, 0 skipped");
        for other in ["built 3 passed in time", "2 passed in bytes", "12 files in 3s"] {
            assert_eq!(count(other).to_string(), "0 passed, 0 failed, 0 skipped", "{other}");
        }
    }

    #[test]
    fn a_test_that_skips_itself_is_no_passed_test() {
        let counted = count(
            "    skipped: AppArmor\nskipped: AppArmor\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n",
        );
        assert_eq!(counted.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(counted.features.into_iter().collect::<Vec<_>>(), ["AppArmor"]);
    }
}
