//! A failing write while a lock is held: tried again a bounded number of times, then the
//! lock is given back, so that one broken disk or row does not hold everybody up.

use std::fmt;
use std::time::Duration;

use leasehold_fence::{FenceError, Token};

use crate::error::{Error, Result};
use crate::lease::Lease;

/// How long to go on with a write that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
}

impl Default for RetryPolicy {
    /// Five attempts, with pauses of about 50 ms to 1 s.
    fn default() -> Self {
        Self::attempts(5)
    }
}

impl RetryPolicy {
    /// At most so many attempts (at least one).
    pub const fn attempts(attempts: u32) -> Self {
        Self {
            attempts: if attempts == 0 { 1 } else { attempts },
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(1),
        }
    }

    /// How long to pause after the first failure, and at most. The pause doubles and is
    /// jittered.
    #[must_use]
    pub const fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first_pause = first;
        self.longest_pause = longest;
        self
    }

    /// Writes with the lease's token, again while it fails with something that may pass.
    /// The lease comes back with the result; when it cannot be done, the lock is released.
    ///
    /// Each attempt begins with [`Lease::checkpoint`]: a lost lease ends it. A write whose
    /// outcome is unknown is tried again with the same token, so it must be a fenced and
    /// repeatable one.
    ///
    /// # Errors
    ///
    /// [`GaveUp`], with the last error. A stale token is not tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the write and releases the lock in the background.
    pub async fn write<T, F>(
        &self,
        lease: Lease,
        mut write: impl FnMut(Token) -> F,
    ) -> Result<(T, Lease), GaveUp>
    where
        F: Future<Output = Result<T, FenceError>>,
    {
        let (mut attempt, mut pause) = (0, self.first_pause);
        loop {
            attempt += 1;
            let error = match lease.checkpoint().await {
                Err(lost) => lost.into(),
                Ok(token) => match write(token).await {
                    Ok(done) => return Ok((done, lease)),
                    Err(error) => error,
                },
            };
            if attempt >= self.attempts || !error.may_be_retried() {
                let released = lease.release().await.err();
                return Err(GaveUp { error, attempts: attempt, released });
            }
            tracing::debug!(target: "leasehold", lock = %lease.name(), attempt, %error, "write failed");
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(self.longest_pause);
        }
    }
}

/// A write that was given up, and its lock with it.
#[derive(Debug)]
#[non_exhaustive]
pub struct GaveUp {
    /// The last error.
    pub error: FenceError,
    /// How often it was tried.
    pub attempts: u32,
    /// Why the lock could not be released, if so: it was gone already, or the store does not
    /// answer, and it lapses by its TTL.
    pub released: Option<Error>,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = match self.attempts {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        write!(f, "gave up a write after trying {times}, and released the lock: {}", self.error)
    }
}

impl std::error::Error for GaveUp {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use leasehold_fence::{Outcome, StaleToken};

    fn disk_full() -> FenceError {
        FenceError::Failed {
            resource: "row".into(),
            outcome: Outcome::NotApplied,
            message: "disk full".into(),
            source: Some(io::Error::other("disk full").into()),
        }
    }

    const QUICK: RetryPolicy =
        RetryPolicy::attempts(4).pauses(Duration::from_millis(1), Duration::from_millis(2));

    #[tokio::test]
    async fn a_write_that_fails_for_a_while_succeeds_and_keeps_the_lock() {
        let locks = crate::connect("memory:").await.unwrap();
        let lease = locks.lock("row").acquire().await.unwrap();
        let mut left = 3;
        let written = QUICK.write(lease, |token| {
            left -= 1;
            async move { if left == 0 { Ok(token) } else { Err(disk_full()) } }
        });
        let (token, lease) = written.await.unwrap();
        assert_eq!(token, lease.token());
        assert!(locks.lock("row").try_acquire().await.unwrap().is_none(), "still held");
    }

    #[tokio::test]
    async fn a_write_that_goes_on_failing_gives_the_lock_back() {
        let locks = crate::connect("memory:").await.unwrap();
        let lease = locks.lock("row").acquire().await.unwrap();
        let gave_up = QUICK.write(lease, async |_| Err::<(), _>(disk_full())).await.unwrap_err();
        assert_eq!(gave_up.attempts, 4);
        assert!(gave_up.released.is_none(), "{gave_up:?}");
        assert!(locks.lock("row").try_acquire().await.unwrap().is_some(), "free again");
    }

    #[tokio::test]
    async fn a_stale_token_is_not_tried_again() {
        let locks = crate::connect("memory:").await.unwrap();
        let lease = locks.lock("row").acquire().await.unwrap();
        let stale = StaleToken { given: Token::new(1), seen: Token::new(2) };
        let gave_up = QUICK.write(lease, async |_| Err::<(), _>(stale.into())).await.unwrap_err();
        assert_eq!((gave_up.attempts, gave_up.error.stale()), (1, Some(stale)));
        assert!(locks.lock("row").try_acquire().await.unwrap().is_some(), "free again");
    }
}
