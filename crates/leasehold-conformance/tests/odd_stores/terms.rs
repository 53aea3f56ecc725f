//! Terms, clocks and findings that are the store's own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backend::memory::MemoryStore;
use leasehold::clock::{Clock, ManualClock};
use leasehold::{ErrorKind, Locks};
use leasehold_conformance::fixture::Fixture;

use crate::odd::Odd;

/// A TTL shorter than the store's answer: `try_acquire` says so after three tries,
/// `acquire` takes and gives back the lock for ever, without a pause and without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_always_come_too_late_are_an_error() {
    let odd = Arc::new(Odd { slow: Duration::from_millis(30), ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lock = locks.lock("x").ttl(Duration::from_millis(20));
    let told = tokio::time::timeout(Fixture::BOUND, lock.acquire()).await;
    let error = told.expect("takes it for ever").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(odd.acquires.load(Ordering::SeqCst), 3, "grants that were thrown away");
}

/// `memory:name` runs on the machine's clock: a client with another one is refused, or
/// its leases would be measured by two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_store_and_its_client_have_one_clock() {
    let clock = Clock::manual(Arc::new(ManualClock::new()));
    let refused = leasehold::connect("memory:one-clock").clock(clock).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    leasehold::connect("memory:one-clock").await.unwrap();
}

/// A store whose clock is coarse (ZooKeeper counts in ticks) keeps a lease for longer than its
/// holder believes in it, never the other way round.
#[tokio::test]
async fn what_a_store_adds_to_the_drift_is_taken_off_the_deadline() {
    let clock = Clock::manual(Arc::new(ManualClock::new()));
    let mut odd = Odd::on(MemoryStore::new(clock));
    odd.guarantees.extra_drift = Duration::from_secs(1);
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let lease = locks.lock("x").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    assert_eq!(lease.remaining(), Duration::from_millis(10_000 - 100 - 2 - 1_000));
}

#[tokio::test]
async fn what_a_store_finds_about_its_set_up_is_told() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let findings = locks.examine().await.unwrap();
    assert!(!findings.is_empty());
    assert_eq!(findings, odd.examine().await.unwrap());
}
