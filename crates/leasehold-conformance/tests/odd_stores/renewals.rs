//! Renewals whose answers are short, old, lost or missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leasehold::backend::memory::MemoryStore;
use leasehold::clock::{Clock, ManualClock};
use leasehold::{ErrorKind, EventKind, LeaseState, Locks};
use leasehold_conformance::fixture::{eventually, next_event};

use crate::odd::Odd;

/// Sleeps, and tells how many terms that really took, rounded up.
async fn terms_in(ttl: Duration, sleep: Duration) -> usize {
    let began = Instant::now();
    tokio::time::sleep(sleep).await;
    began.elapsed().div_duration_f64(ttl).ceil() as usize
}

/// A store that keeps whole milliseconds answers a renewal with a little less than the
/// TTL. That is taken for a short pushed grant, to be renewed at once: again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_for_a_little_less_than_the_ttl_is_no_storm() {
    let odd = Arc::new(Odd { rounds: true, ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let ttl = Duration::from_micros(300_500);
    let _lease = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    let terms = terms_in(ttl, ttl * 2).await;
    let renewals = odd.renewals.load(Ordering::SeqCst);
    assert!(renewals < 10 * terms, "{renewals} renewals in {terms} terms");
}

/// One bad lease in a batch: the others are renewed one after the other, each after the
/// answer to the last, although the store takes many requests at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_refused_batch_are_renewed_in_time() {
    let odd = Odd { renew_one_by_one: Duration::from_millis(20), ..Odd::new() };
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let mut events = locks.events();
    let mut leases = Vec::new();
    for index in 0..400 {
        let lock = locks.lock(format!("x{index}")).ttl(Duration::from_secs(6));
        leases.push(lock.acquire().await.unwrap());
    }
    for _ in 0..400 {
        next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    }
    let lost = leases.iter().filter(|lease| lease.state() != LeaseState::Held).count();
    assert_eq!(lost, 0, "of 400, with 20 ms each (8 s in all) and a TTL of 6 s");
}

/// A pushed grant lasts three seconds less 1 % of the TTL, but its first renewal may
/// take min(2 s, TTL / 6): one lost packet, and there is no time for a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_packet_does_not_cost_a_pushed_grant() {
    let odd = Arc::new(Odd::new());
    let first = Locks::on(odd.clone()).await.unwrap();
    let second = Locks::on(odd.clone()).await.unwrap();
    let lease = first.lock("x").acquire().await.unwrap();
    let waiting = second.lock("x").ttl(Duration::from_secs(120));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    while first.inspect("x").await.unwrap().waiters == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut events = second.events();
    odd.renew_lost.store(true, Ordering::SeqCst);
    lease.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert_eq!(odd.renewals.load(Ordering::SeqCst), 2, "one was lost");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// On a session store the proof is the session's last keep-alive. When that is more than
/// a third of the term ago, the next renewal was due at once: again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_proved_by_an_old_keep_alive_are_no_storm() {
    let ttl = Duration::from_secs(2);
    let odd = Arc::new(Odd { proved_ago: ttl * 2 / 5, ..Odd::new() });
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    let terms = terms_in(ttl, ttl).await;
    let renewals = odd.renewals.load(Ordering::SeqCst);
    assert!(renewals < 30 * terms, "{renewals} renewals in {terms} terms");
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Questions that were under way together and got no answer are one failure: counted
/// each, a few hints use up all attempts in an outage of a sixth of the TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_same_moment_are_one_attempt() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    odd.renew_away.store(true, Ordering::SeqCst);
    odd.hints.add_permits(12);
    eventually("doubt", async || lease.state() != LeaseState::Held).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    odd.renew_away.store(false, Ordering::SeqCst);
    assert_eq!(lease.state(), LeaseState::Doubtful);
    eventually("the next proof", async || lease.state() == LeaseState::Held).await;
}

/// A hint about all leases is about those that last: renewed once more, one that `max_hold`
/// has ended would stay at the store for another TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_does_not_renew_what_is_over() {
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let odd = Arc::new(Odd::on(MemoryStore::new(clock)));
    let locks = Locks::on(odd.clone()).await.unwrap();
    let mut events = locks.events();
    let capped = locks.lock("x").max_hold(Duration::from_secs(1)).acquire().await.unwrap();
    let _other = locks.lock("y").acquire().await.unwrap();
    hand.advance(Duration::from_secs(2));
    next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    odd.hints.add_permits(1);
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    let lease = locks.inspect("x").await.unwrap().leases.remove(0);
    assert!(lease.remaining < Some(capped.ttl()), "extended by a hint");
}

/// The term of a lease that is not renewed stays what it was, whatever makes the client ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_does_not_extend_a_lease_without_renewal() {
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let odd = Arc::new(Odd::on(MemoryStore::new(clock)));
    let locks = Locks::on(odd.clone()).await.unwrap();
    let fixed = locks.lock("x").no_renewal().acquire().await.unwrap();
    let _other = locks.lock("y").acquire().await.unwrap();
    let mut events = locks.events();
    hand.advance(Duration::from_secs(1));
    let before = fixed.remaining();
    odd.hints.add_permits(1);
    let renewed = next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert_eq!(renewed.name.as_str(), "y");
    assert_eq!(fixed.remaining(), before);
}

#[tokio::test]
async fn a_renewal_without_a_verdict_proves_nothing() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    odd.renew_says_nothing.store(true, Ordering::SeqCst);
    let error = lease.renew().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Internal, "{error}");
    assert_eq!(lease.state(), LeaseState::Doubtful);
    lease.renew().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
}
