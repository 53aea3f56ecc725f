//! Once per key: a closure that runs, and an outcome that is remembered.

use std::fmt;
use std::time::Duration;

use leasehold_fence::{FenceError, Outcomes, Standing, Token};

use crate::locks::Locks;

/// What [`Once::run`] gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The outcome that is on record.
    pub outcome: Vec<u8>,
    /// Whether it was there before, and the closure was not run.
    pub replayed: bool,
}

/// Runs closures once per key and remembers their outcomes.
///
/// While one runs, its key is protected by a lease of the lock `PREFIX:KEY` and by the
/// lease's token; others wait, and then get the stored outcome. When the process that runs
/// it dies, the next caller takes over with a higher token, and the dead one's outcome, should
/// it still come, is refused.
///
/// **A crash in the middle means that the closure is run again.** What it does to the
/// outside must bear that: fence it with the token that it is given, or give the other side
/// the key as an idempotency key. A closure that fails leaves no outcome: the next call runs it
/// again.
///
/// **Outcomes are kept for [90 days](super::DEFAULT_KEEP)**, unless the place where they are kept says otherwise
/// (`keep`): choose longer than anybody may come back with the same key, for then the closure is run
/// again. Keys that were begun and not finished are kept.
///
/// ```
/// use leasehold::fence::{FenceError, Once, sqlite::SqliteOutcomes};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("outcomes.db");
/// let locks = leasehold::connect("memory:").await?;
/// let once = Once::new(locks, "charge", SqliteOutcomes::open(&path)?);
/// let charge = async |_token| Ok::<_, FenceError>(b"receipt 1".to_vec());
/// assert!(!once.run("order-42", charge).await?.replayed);
/// assert!(once.run("order-42", charge).await?.replayed);
/// # Ok::<(), FenceError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Once<O> {
    locks: Locks,
    prefix: String,
    outcomes: O,
    ttl: Duration,
    wait: Duration,
}

impl<O: Outcomes> Once<O> {
    /// Closures whose locks are named `prefix:key`. Several prefixes may share one table of
    /// outcomes: what is kept there is named by prefix and key. Locks of another store may
    /// not: their tokens mean nothing in it.
    pub fn new(locks: Locks, prefix: impl Into<String>, outcomes: O) -> Self {
        let (ttl, wait) = (crate::terms::DEFAULT_TTL, Duration::from_secs(60));
        Self { locks, prefix: prefix.into(), outcomes, ttl, wait }
    }

    /// How long a lease lasts without renewal: how soon a stopped machine is taken over.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for another that runs the same key. A minute, unless told.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The outcome of a key, if it was done.
    ///
    /// # Errors
    ///
    /// When the outcomes cannot be read.
    pub async fn outcome(&self, key: &str) -> Result<Option<Vec<u8>>, FenceError> {
        Ok(match self.outcomes.standing(&self.stored(key)).await? {
            Standing::Finished(outcome) => Some(outcome),
            Standing::New | Standing::Running(_) => None,
        })
    }

    /// The name of an outcome. With the prefix's length: `a:b` and `c` are not `a` and `b:c`.
    fn stored(&self, key: &str) -> String {
        format!("{}:{}:{key}", self.prefix.len(), self.prefix)
    }

    /// Runs `work` unless the key was done before; either way the outcome on record.
    ///
    /// # Errors
    ///
    /// The work's own error; that the lock is held for longer than the wait, or was lost;
    /// [`FenceError::Stale`] when another has taken over meanwhile: its outcome counts.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the work stops where it stands, and the next call takes over.
    pub async fn run<E, W, F>(&self, key: &str, work: W) -> Result<Done, E>
    where
        W: FnOnce(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: From<FenceError>,
    {
        if let Some(outcome) = self.outcome(key).await? {
            return Ok(Done { outcome, replayed: true });
        }
        let stored = self.stored(key);
        let lock = self.locks.lock(format!("{}:{key}", self.prefix)).ttl(self.ttl).wait(self.wait);
        let done = lock.run(async |lease| {
            let token = lease.checkpoint().await?;
            if let Standing::Finished(outcome) = self.outcomes.begin(&stored, token).await? {
                return Ok(Done { outcome, replayed: true });
            }
            let outcome = work(token).await.map_err(Stopped::Work)?;
            let token = lease.checkpoint().await?;
            self.outcomes.finish(&stored, token, &outcome).await?;
            Ok(Done { outcome, replayed: false })
        });
        match done.await {
            Ok(done) => Ok(done),
            Err(Stopped::Work(error)) => Err(error),
            Err(Stopped::Fence(error)) => Err(error.into()),
        }
    }
}

/// Why a run ended without an outcome.
enum Stopped<E> {
    Work(E),
    Fence(FenceError),
}

impl<E> From<FenceError> for Stopped<E> {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

impl<E> From<crate::Error> for Stopped<E> {
    fn from(error: crate::Error) -> Self {
        Self::Fence(error.into())
    }
}

impl<O> fmt::Debug for Once<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::fence::sqlite::SqliteOutcomes;

    #[tokio::test]
    async fn the_same_key_under_another_prefix_is_another_outcome() {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = SqliteOutcomes::open(folder.path().join("outcomes.db")).unwrap();
        let locks = crate::connect("memory:").await.unwrap();
        for (prefix, key) in
            [("charge", "order"), ("refund", "order"), ("a", "b:c"), ("a:b", "c"), ("1:a", "b:c")]
        {
            let once = Once::new(locks.clone(), prefix, outcomes.clone());
            let work = async |_| Ok::<_, FenceError>(format!("{prefix} {key}").into_bytes());
            assert_eq!(once.outcome(key).await.unwrap(), None, "{prefix} {key}");
            let done = once.run(key, work).await.unwrap();
            assert_eq!(done.outcome, format!("{prefix} {key}").into_bytes());
            assert!(!done.replayed && once.run(key, work).await.unwrap().replayed);
        }
    }
}
