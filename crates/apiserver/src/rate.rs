//! Creates per second: a bucket for each project that has a bound, in this process. A rate is no promise that must survive a
//! crash, and several apiservers let through as many times as much.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{Code, Error, Result};

use crate::session::Session;

/// Buckets that are kept; then those alone that owe for a batch.
const BUCKETS_MAX: usize = 10_000;

/// By project.
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<String, Bucket>>);

struct Bucket {
    /// Below 0 after a batch: others wait for it.
    tokens: f64,
    since: Instant,
}

impl Bucket {
    fn filled(&self, rate: f64, now: Instant) -> f64 {
        (self.tokens + now.duration_since(self.since).as_secs_f64() * rate).min(rate)
    }
}

impl Rates {
    /// Takes `count` from all buckets, or from none where one is empty. Errors: how long until it is not.
    fn take(&self, bounds: &[(String, u64)], count: u32, now: Instant) -> std::result::Result<(), Duration> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX {
            buckets.retain(|_, bucket| bucket.tokens < 0.0);
        }
        let mut wait = Duration::ZERO;
        for (project, bound) in bounds {
            let rate = *bound as f64;
            let fresh = || Bucket { tokens: rate, since: now };
            let bucket = buckets.entry(project.clone()).or_insert_with(fresh);
            *bucket = Bucket { tokens: bucket.filled(rate, now), since: now };
            if bucket.tokens < 1.0 {
                // A bound of 0 is a project that creates nothing: asked again in a minute.
                let seconds = if rate > 0.0 { (1.0 - bucket.tokens) / rate } else { 60.0 };
                wait = wait.max(Duration::from_secs_f64(seconds.min(3600.0)));
            }
        }
        if wait > Duration::ZERO {
            return Err(wait);
        }
        for (project, _) in bounds {
            if let Some(bucket) = buckets.get_mut(project) {
                bucket.tokens -= f64::from(count);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Errors: `rate_limited`, with when to come back.
    pub(crate) async fn check_rate(&self, project_id: &str, count: u32) -> Result<()> {
        let bounds = self.shared.iam.rates(project_id).await?;
        self.shared.rates.take(&bounds, count, Instant::now()).map_err(|wait| {
            let text = "creates_per_s: the project, or one above it, creates as many as it may";
            Error::new(Code::RateLimited, text).retry_after_ms(wait.as_millis() as u64 + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_at_its_rate_and_a_batch_is_waited_for() {
        let (rates, start) = (Rates::default(), Instant::now());
        let bounds = [("low".to_owned(), 10), ("high".to_owned(), 1000)];
        let after = |ms| start + Duration::from_millis(ms);
        for _ in 0..10 {
            rates.take(&bounds, 1, start).unwrap();
        }
        let wait = rates.take(&bounds, 1, start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        rates.take(&bounds, 1, after(100)).unwrap();
        // Ten are there again, and a batch takes a hundred: the next waits for 90 and itself.
        rates.take(&bounds, 100, after(2000)).unwrap();
        assert_eq!(rates.take(&bounds, 1, after(2000)).unwrap_err(), Duration::from_millis(9100));
        rates.take(&bounds, 1, after(11_100)).unwrap();
        // Nothing is taken from the others where one is empty.
        let none = [("other".to_owned(), 1), ("none".to_owned(), 0)];
        assert_eq!(rates.take(&none, 1, start).unwrap_err(), Duration::from_secs(60));
        rates.take(&none[..1], 1, start).unwrap();
        assert!(rates.take(&none[..1], 1, start).is_err());
    }
}
