//! When to try again: only what is safe to send twice, only for errors that time may heal, and never for long.

use std::{future::Future, time::Duration};

use api::{Class, Error, Result};

/// Tries in all, the first included.
pub(crate) const ATTEMPTS_MAX: u32 = 4;
const WAIT_MS_FIRST: u64 = 50;
const WAIT_MS_MAX: u64 = 5_000;

/// Before try `attempt` (1 is the first retry): what the server asked for, else doubling.
pub(crate) fn wait(attempt: u32, error: &Error) -> Duration {
    let ms = error.retry_after_ms.unwrap_or(WAIT_MS_FIRST << attempt.min(10));
    Duration::from_millis(ms.min(WAIT_MS_MAX))
}

/// May heal by itself. `deadline_exceeded` has used up the caller's patience already and is not tried again.
pub(crate) fn may_heal(error: &Error) -> bool {
    match error.code.class() {
        Class::Busy => error.code != api::Code::DeadlineExceeded,
        Class::Broken => true,
        Class::Refused => false,
    }
}

/// Runs `call` until it succeeds, fails for good, or has been tried [`ATTEMPTS_MAX`] times. For calls that are safe
/// to repeat: reads, and those with an idempotency key.
pub(crate) async fn repeat<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> Result<T> {
    let mut attempt = 1;
    loop {
        match call().await {
            Err(e) if attempt < ATTEMPTS_MAX && may_heal(&e) => {
                tracing::debug!(attempt, code = e.code.as_str(), "trying again");
                tokio::time::sleep(wait(attempt, &e)).await;
                attempt += 1;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Code;
    use std::sync::atomic::{AtomicU32, Ordering};

    async fn tries(code: Code) -> u32 {
        let count = AtomicU32::new(0);
        let e = repeat(|| async {
            count.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(Error::new(code, "no").retry_after_ms(1))
        })
        .await
        .unwrap_err();
        assert_eq!(e.code, code);
        count.into_inner()
    }

    #[tokio::test]
    async fn refusals_are_final_and_the_rest_is_bounded() {
        assert_eq!(tries(Code::NotFound).await, 1);
        assert_eq!(tries(Code::DeadlineExceeded).await, 1);
        assert_eq!(tries(Code::NoCapacity).await, ATTEMPTS_MAX);
        assert_eq!(tries(Code::Internal).await, ATTEMPTS_MAX);
    }

    #[tokio::test]
    async fn the_second_try_may_succeed() {
        let count = AtomicU32::new(0);
        let got = repeat(|| async {
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Error::internal("connection lost").retry_after_ms(1)),
                n => Ok(n),
            }
        })
        .await;
        assert_eq!(got, Ok(1));
    }

    #[test]
    fn no_wait_is_longer_than_the_bound() {
        let e = Error::internal("x").retry_after_ms(u64::MAX);
        assert_eq!(wait(1, &e), Duration::from_millis(WAIT_MS_MAX));
        assert_eq!(wait(60, &Error::internal("x")), Duration::from_millis(WAIT_MS_MAX));
    }
}
