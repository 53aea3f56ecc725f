//! Stores that panic, and callers that do not poll: nobody else is stranded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use leasehold::backend::Limits;
use leasehold::{EventKind, LeaseState, Locks};
use leasehold_conformance::fixture::{Fixture, next_event};

use crate::odd::Odd;

/// python-redis-lock: a renewal killed by one exception, unreported, is never tried
/// again, although two thirds of the term are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_end_renewal() {
    let store = Arc::new(Odd::new());
    let locks = Locks::on(store.clone()).await.unwrap();
    let mut events = locks.events();
    // A busy machine needs seconds to print the panic's backtrace.
    let lease = locks.lock("x").ttl(Duration::from_secs(12)).acquire().await.unwrap();
    store.renew_panics.store(true, Ordering::SeqCst);
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert!(!store.renew_panics.load(Ordering::SeqCst), "it panicked before");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// A store that panics on one request: those who had collected behind it are nobody's
/// any more, and hang until somebody else happens to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_strand_those_behind() {
    let odd = Odd {
        limits: Limits::new(1, 1),
        slow: Duration::from_millis(50),
        acquire_panics: Some("bad"),
        ..Odd::new()
    };
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let bad = locks.lock("bad");
    let bad = tokio::spawn(async move { bad.try_acquire().await.map(drop) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let good = locks.lock("good");
    let good = tokio::spawn(async move { good.try_acquire().await.map(drop) });
    tokio::time::sleep(Duration::from_millis(5)).await;
    bad.abort();
    let good = tokio::time::timeout(Fixture::BOUND, good).await;
    let good = good.expect("stranded behind it").unwrap();
    assert!(good.is_ok(), "it had no part in that: {good:?}");
}

/// A caller that keeps its future and does not poll it (the other branch of a `select!` runs)
/// has a request under way. Whoever comes behind it hangs, if its answer waits to be polled.
#[tokio::test]
async fn a_caller_that_does_not_poll_keeps_nobody_waiting() {
    let slow = Duration::from_millis(20);
    for answered_before in [false, true] {
        let odd = Odd { limits: Limits::new(1, 1), slow, ..Odd::new() };
        let locks = Locks::on(Arc::new(odd)).await.unwrap();
        let (idle, other) = (locks.lock("idle"), locks.lock("other"));
        let mut idle = std::pin::pin!(idle.acquire());
        let began = std::future::poll_fn(|cx| Poll::Ready(idle.as_mut().poll(cx).is_pending()));
        assert!(began.await, "it is under way");
        if answered_before {
            tokio::time::sleep(5 * slow).await;
        }
        let behind = tokio::time::timeout(Fixture::BOUND, other.acquire()).await;
        assert!(behind.expect("hangs behind a caller that does not poll").is_ok());
        assert!(idle.await.is_ok(), "and that one has its lock");
    }
}

/// A store that panics where it is asked in place ends the task that asked: a lease that
/// was dropped is then never released, and its end never told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_panic_of_the_store_does_not_end_a_release() {
    let odd = Arc::new(Odd { acquire_panics: Some("bad"), ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    odd.release_panics.store(true, Ordering::SeqCst);
    drop(lease);
    let again = locks.lock("x").wait(Duration::from_secs(5)).acquire().await;
    assert!(again.is_ok(), "{again:?}");
    // It had been granted before the panic, and that was found out.
    assert!(locks.lock("bad").try_acquire().await.unwrap().is_some());
}
