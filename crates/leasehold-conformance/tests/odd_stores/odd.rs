//! A store with bad habits, which each test chooses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backend::memory::MemoryStore;
use leasehold::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId, LockInfo,
    Release, Renewal, Reply, Turn, Verdict,
};
use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, Guarantees};

/// A store with one bad habit.
#[derive(Debug)]
pub(crate) struct Odd {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) guarantees: Guarantees,
    pub(crate) limits: Limits,
    /// Each acquire takes this long.
    pub(crate) slow: Duration,
    /// The next renewal panics.
    pub(crate) renew_panics: AtomicBool,
    /// The next renewal is lost.
    pub(crate) renew_lost: AtomicBool,
    /// The next renewal is answered without a verdict.
    pub(crate) renew_says_nothing: AtomicBool,
    /// Renewals of several leases are refused for what is in them; each alone takes this long.
    pub(crate) renew_one_by_one: Duration,
    /// Batches are done, but the answer is that each must be sent alone.
    pub(crate) retry_alone: bool,
    /// Renewals get no answer for now.
    pub(crate) renew_away: AtomicBool,
    /// Renewals are proved by a session's keep-alive that was this long ago.
    pub(crate) proved_ago: Duration,
    /// The next release panics.
    pub(crate) release_panics: AtomicBool,
    /// Hints about all leases that are on their way.
    pub(crate) hints: tokio::sync::Semaphore,
    /// Claims on names that contain this panic.
    pub(crate) acquire_panics: Option<&'static str>,
    /// Terms are rounded down to whole milliseconds, as a server's are.
    pub(crate) rounds: bool,
    pub(crate) acquires: AtomicUsize,
    pub(crate) renewals: AtomicUsize,
}

impl Odd {
    pub(crate) fn new() -> Self {
        Self::on(MemoryStore::new(Clock::boot()))
    }

    pub(crate) fn on(store: Arc<MemoryStore>) -> Self {
        Self {
            guarantees: store.guarantees().clone(),
            store,
            limits: Limits::new(64, 64),
            slow: Duration::ZERO,
            renew_panics: AtomicBool::new(false),
            renew_lost: AtomicBool::new(false),
            renew_says_nothing: AtomicBool::new(false),
            renew_one_by_one: Duration::ZERO,
            retry_alone: false,
            renew_away: AtomicBool::new(false),
            proved_ago: Duration::ZERO,
            release_panics: AtomicBool::new(false),
            hints: tokio::sync::Semaphore::new(0),
            acquire_panics: None,
            rounds: false,
            acquires: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
        }
    }
}

impl Odd {
    fn answer<T>(&self, count: usize, answer: leasehold::Result<T>) -> leasehold::Result<T> {
        let alone = !self.retry_alone || count == 1;
        answer.and_then(|done| {
            let some = || Error::new(ErrorKind::RetryAlone, "it did some of it");
            alone.then_some(done).ok_or_else(some)
        })
    }
}

impl Backend for Odd {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }
    fn clock(&self) -> &Clock {
        self.store.clock()
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let acquired = self.store.clone().acquire(claims.clone()).await;
            if !self.slow.is_zero() {
                tokio::time::sleep(self.slow).await;
            }
            let bad = |claim: &Claim| {
                self.acquire_panics.is_some_and(|part| claim.name.as_str().contains(part))
            };
            assert!(!claims.iter().any(bad), "a store with a bug");
            self.answer(claims.len(), acquired)
        })
    }
    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        self.store.clone().wait(claim)
    }
    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.store.clone().leave(claim)
    }
    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        self.store.clone().settle(claims)
    }
    fn renew(self: Arc<Self>, mut holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        assert!(!self.renew_panics.swap(false, Ordering::SeqCst), "a store with a bug");
        let away = self.renew_away.load(Ordering::SeqCst);
        if self.renew_lost.swap(false, Ordering::SeqCst) || away {
            return Box::pin(std::future::pending());
        }
        if self.renew_says_nothing.swap(false, Ordering::SeqCst) {
            return Box::pin(async { Ok(Vec::new()) });
        }
        if !self.renew_one_by_one.is_zero() {
            return Box::pin(async move {
                if holds.len() > 1 {
                    return Err(Error::new(ErrorKind::Invalid, "one of them is unknown"));
                }
                let verdicts = self.store.clone().renew(holds).await;
                tokio::time::sleep(self.renew_one_by_one).await;
                verdicts
            });
        }
        if self.rounds {
            for hold in &mut holds {
                hold.ttl = Duration::from_millis(hold.ttl.as_millis() as u64);
            }
        }
        Box::pin(async move {
            let mut verdicts = self.store.clone().renew(holds).await?;
            for verdict in &mut verdicts {
                if let Renewal::Renewed(proof) = verdict {
                    proof.at = proof.at - self.proved_ago;
                }
            }
            Ok(verdicts)
        })
    }
    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        assert!(!self.release_panics.swap(false, Ordering::SeqCst), "a store with a bug");
        Box::pin(async move {
            let count = holds.len();
            let released = self.store.clone().release(holds).await;
            if self.retry_alone {
                tokio::time::sleep(self.slow).await;
            }
            self.answer(count, released)
        })
    }
    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        self.store.clone().inspect(lock)
    }
    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.store.clone().list(prefix)
    }
    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        self.store.clone().force_release(lock, force)
    }
    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.store.clone().examine()
    }
    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            self.hints.acquire().await.expect("never closed").forget();
            Ok(Hint::All)
        })
    }
}
