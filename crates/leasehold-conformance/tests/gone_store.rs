//! A store that says it is gone ends its leases: a loss, not a doubt, on every path that hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::backend::memory::MemoryStore;
use leasehold::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hold, Limits, LockId, LockInfo, Release,
    Renewal, Reply, Turn, Verdict,
};
use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, EventKind, Guarantees, Lease, LeaseState, Locks, LossReason};
use leasehold_conformance::fixture::{next_event, within_bound};

/// Long: only an answer can end a lease of it within the bound of the tests.
const TTL: Duration = Duration::from_secs(600);

/// A store that can go.
#[derive(Debug)]
struct Mortal {
    store: Arc<MemoryStore>,
    gone: AtomicBool,
}

impl Mortal {
    fn ask<T>(&self, reply: Reply<T>) -> Reply<T>
    where
        T: Send + 'static,
    {
        match self.gone.load(Ordering::SeqCst) {
            false => reply,
            true => Box::pin(async { Err(Error::new(ErrorKind::Gone, "it was removed")) }),
        }
    }
}

impl Backend for Mortal {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }
    fn limits(&self) -> Limits {
        self.store.limits()
    }
    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        self.ask(self.store.clone().acquire(claims))
    }
    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            while !self.gone.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.ask(self.store.clone().wait(claim)).await
        })
    }
    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.ask(self.store.clone().leave(claim))
    }
    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        self.ask(self.store.clone().settle(claims))
    }
    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        self.ask(self.store.clone().renew(holds))
    }
    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        self.ask(self.store.clone().release(holds))
    }
    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        self.ask(self.store.clone().inspect(lock))
    }
    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.ask(self.store.clone().list(prefix))
    }
    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        self.ask(self.store.clone().force_release(lock, force))
    }
    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.ask(self.store.clone().examine())
    }
}

/// A client of such a store, with two leases.
async fn scene() -> (Arc<Mortal>, Locks, Lease, Lease) {
    let store = MemoryStore::new(Clock::boot());
    let store = Arc::new(Mortal { store, gone: AtomicBool::new(false) });
    let locks = Locks::on(store.clone()).await.unwrap();
    let one = locks.lock("one").ttl(TTL).acquire().await.unwrap();
    let two = locks.lock("two").ttl(TTL).acquire().await.unwrap();
    (store, locks, one, two)
}

fn is_lost(lease: &Lease) -> bool {
    matches!(lease.state(), LeaseState::Lost(loss) if loss.reason == LossReason::StoreGone)
}

#[tokio::test]
async fn one_renewal_that_hears_it_tells_all_leases() {
    let (store, _locks, one, two) = scene().await;
    store.gone.store(true, Ordering::SeqCst);
    let error = within_bound("a renewal", one.renew()).await.unwrap_err();
    assert!(error.loss().is_some(), "{error}");
    assert!(is_lost(&one) && is_lost(&two), "{one:?} {two:?}");
}

#[tokio::test]
async fn asking_about_one_lease_tells_all() {
    let (store, _locks, one, two) = scene().await;
    store.gone.store(true, Ordering::SeqCst);
    let error = within_bound("an answer", one.verify()).await.unwrap_err();
    assert!(error.loss().is_some(), "{error}");
    assert!(is_lost(&one) && is_lost(&two), "{one:?} {two:?}");
}

#[tokio::test]
async fn a_release_that_hears_it_says_that_the_lease_had_gone() {
    let (store, locks, one, _two) = scene().await;
    let mut events = locks.events();
    store.gone.store(true, Ordering::SeqCst);
    let error = within_bound("a release", one.release()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld, "{error}");
    let lost = next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert!(matches!(lost.kind, EventKind::Lost(loss) if loss.reason == LossReason::StoreGone));
}

/// A store that is away for a moment is borne for a TTL; one that is gone never comes back.
#[tokio::test]
async fn a_waiter_that_hears_it_waits_no_longer() {
    let (store, locks, _one, _two) = scene().await;
    let mut events = locks.events();
    let lock = locks.lock("one").ttl(TTL).wait(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    store.gone.store(true, Ordering::SeqCst);
    let error = within_bound("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Gone, "{error}");
}
