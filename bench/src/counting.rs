//! Backends for measuring: one that counts requests on their way to a store, and one
//! that keeps nothing, so that only the client's own cost is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId, LockInfo,
    Proof, Release, Renewal, Reply, Turn, Verdict,
};
use leasehold::clock::Clock;
use leasehold::{Guarantees, Token};

/// Passes everything on, and counts.
#[derive(Debug)]
pub(crate) struct Counting {
    store: Arc<dyn Backend>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Claims, and the requests they came in.
    pub(crate) claims: Count,
    /// Renewals, and the requests they came in.
    pub(crate) renewals: Count,
}

/// So many items in so many requests.
#[derive(Debug, Default)]
pub(crate) struct Count {
    items: AtomicU64,
    requests: AtomicU64,
}

impl Count {
    fn add(&self, items: usize) {
        self.items.fetch_add(items as u64, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Items and requests so far.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.items.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed))
    }
}

impl Counting {
    pub(crate) fn new(store: Arc<dyn Backend>, counts: Arc<Counts>) -> Arc<Self> {
        Arc::new(Self { store, counts })
    }
}

impl Backend for Counting {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        self.counts.claims.add(claims.len());
        self.store.clone().acquire(claims)
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

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let renewing = self.store.clone().renew(holds);
        Box::pin(async move {
            let verdicts = renewing.await?;
            let renewed =
                verdicts.iter().filter(|verdict| matches!(verdict, Renewal::Renewed(_))).count();
            self.counts.renewals.add(renewed);
            Ok(verdicts)
        })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        self.store.clone().release(holds)
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
        self.store.clone().hint()
    }
}

/// Grants everything and remembers nothing.
#[derive(Debug)]
pub(crate) struct Nothing {
    clock: Clock,
    guarantees: Guarantees,
    tokens: AtomicU64,
}

impl Nothing {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        let (guarantees, tokens) = (Guarantees::of("nothing"), AtomicU64::new(1));
        Arc::new(Self { clock, guarantees, tokens })
    }
}

fn at_once<T: Send + 'static>(answer: T) -> Reply<T> {
    Box::pin(std::future::ready(Ok(answer)))
}

impl Backend for Nothing {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        Limits::new(512, usize::MAX)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let at = self.clock.now();
        let grant = |claim: &Claim| {
            let token = Token::new(self.tokens.fetch_add(1, Ordering::Relaxed));
            Verdict::Granted(Grant { token, proof: Proof { at, valid_for: claim.ttl } })
        };
        at_once(claims.iter().map(grant).collect())
    }

    fn wait(self: Arc<Self>, _: Claim) -> Reply<Turn> {
        at_once(Turn::TryAgain)
    }

    fn leave(self: Arc<Self>, _: Claim) -> Reply<()> {
        at_once(())
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        at_once(claims.iter().map(|_| None).collect())
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let at = self.clock.now();
        let renew = |hold: &Hold| Renewal::Renewed(Proof { at, valid_for: hold.ttl });
        at_once(holds.iter().map(renew).collect())
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        at_once(holds.iter().map(|_| Release::Released).collect())
    }

    fn inspect(self: Arc<Self>, _: LockId) -> Reply<Option<LockInfo>> {
        at_once(None)
    }

    fn list(self: Arc<Self>, _: String) -> Reply<Vec<LockInfo>> {
        at_once(Vec::new())
    }

    fn force_release(self: Arc<Self>, _: LockId, _: Force) -> Reply<ForceRelease> {
        at_once(ForceRelease::NobodyHeld)
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        at_once(Vec::new())
    }
}
