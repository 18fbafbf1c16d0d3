//! What can go wrong at a registry, what may heal, and when to try again.
//!
//! Invariant: tries are counted and waits are bounded; a registry that asks for more patience gets an error that says
//! when to come back.

use std::time::Duration;

use api::{Code, Error};

/// Tries of one request, or of one blob without progress, the first included.
pub const ATTEMPTS_MAX: u32 = 6;
const WAIT_MS_FIRST: u64 = 200;
const WAIT_MS_MAX: u64 = 10_000;
/// A longer `Retry-After` is the caller's to wait for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// One try that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    pub error: Error,
    /// Some: trying again makes sense.
    heals: Option<Heals>,
}

#[derive(Debug, Clone, Copy)]
enum Heals {
    Soon,
    After(Duration),
}

impl Failure {
    /// For good.
    pub fn last(code: Code, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, message), heals: None }
    }

    /// The registry or the way to it.
    pub fn unreachable(message: impl Into<String>) -> Self {
        let error = Error::new(Code::Unreachable, message).retry_after_ms(WAIT_MS_MAX);
        Self { error, heals: Some(Heals::Soon) }
    }

    pub fn rate_limited(message: impl Into<String>, after: Option<Duration>) -> Self {
        let ms = after.map_or(WAIT_MS_MAX, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let error = Error::new(Code::RateLimited, message).retry_after_ms(ms);
        let heals = match after {
            Some(after) if after > RETRY_AFTER_MAX => None,
            Some(after) => Some(Heals::After(after)),
            None => Some(Heals::Soon),
        };
        Self { error, heals }
    }

    /// How long to wait before the next try, `failed` of which have failed; None: it is not to be tried again.
    pub fn wait(&self, failed: u32) -> Option<Duration> {
        let heals = self.heals.filter(|_| failed < ATTEMPTS_MAX)?;
        let doubling = (WAIT_MS_FIRST << failed.saturating_sub(1).min(16)).min(WAIT_MS_MAX);
        // Many nodes that met the same fault must not come back in step.
        let jitter = uuid::Uuid::new_v4().as_u128() as u64 % (doubling / 4 + 1);
        let own = Duration::from_millis(doubling + jitter);
        Some(match heals {
            Heals::Soon => own,
            Heals::After(asked) => asked.max(own),
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, heals: None }
    }
}

/// Tries until it works, or is not worth it.
pub async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut failed = 0;
    loop {
        let failure = match attempt().await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        failed += 1;
        let Some(wait) = failure.wait(failed) else { return Err(failure.error) };
        tracing::info!(error = %failure.error, failed, "pull: trying again");
        tokio::time::sleep(wait).await;
    }
}
