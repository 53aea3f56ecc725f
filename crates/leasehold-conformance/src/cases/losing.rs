//! Losing a lease, and knowing it in time.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Claim, Renewal};
use leasehold::{ErrorKind, EventKind, Holder, LeaseState, LossReason, OnDoubt, Operation};

use crate::fixture::{Fixture, eventually, next_event, within_bound};

fn reason(state: LeaseState) -> Option<LossReason> {
    match state {
        LeaseState::Lost(loss) => Some(loss.reason),
        _ => None,
    }
}

/// redisson#4698, etcd#6127: no signal when renewal fails.
pub async fn loss_fires_at_the_deadline_when_the_store_is_silent(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    client.faults.cut();
    let mut events = client.locks.events();
    let term = fixture.clock().now().until(lease.deadline());
    let shortly = fixture.tolerance() / 2;
    fixture.advance(term - shortly).await;
    assert_eq!(lease.state(), LeaseState::Held, "not before its time");
    // Turned once, then the clock stands still: whoever is late by then is late for ever.
    fixture.advance(shortly).await;
    // By the timer, not by a call: nobody asks the lease.
    next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    let loss = within_bound("the signal", lease.lost()).await;
    assert_eq!(loss.reason, LossReason::Expired);
    // The schedule counts in milliseconds, and early is safe.
    let (early, late) = (loss.at.until(lease.deadline()), lease.deadline().until(loss.at));
    assert!(early <= Duration::from_millis(1) && late <= fixture.tolerance(), "{loss:?}");
}

/// The same while it is in doubt, however often it may still be proved.
pub async fn loss_fires_at_the_deadline_in_doubt_as_well(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Prove { attempts: u32::MAX });
    let lease = lock.acquire().await.unwrap();
    let mut events = client.locks.events();
    client.faults.cut();
    fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Doubtful(_))).await;
    fixture.advance(fixture.clock().now().until(lease.deadline())).await;
    // By the timer, not by a call: nobody asked the lease.
    next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert_eq!(reason(lease.state()), Some(LossReason::Unreachable));
}

/// The point of it all: told before another can start.
pub async fn the_holder_knows_before_the_next_one_starts(fixture: &Fixture) {
    let (first, second) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    first.faults.cut();
    for _ in 0..1_000 {
        fixture.advance(Duration::from_millis(10)).await;
        let next = second.lock(&name).try_acquire().await.unwrap();
        if next.is_some() {
            assert!(matches!(lease.state(), LeaseState::Lost(_)));
            return;
        }
    }
    panic!("the lock never expired");
}

/// redsync#72: the time was taken at the response, so the guard lived too long.
pub async fn the_deadline_counts_from_before_the_request(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let asked = fixture.clock().now();
    let gate = client.faults.hold_reply(Operation::Acquire);
    let lock = client.lock(&name).no_renewal();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    fixture.advance(fixture.ttl() / 2).await;
    gate.send(()).unwrap();
    let lease = within_bound("acquire", acquiring).await.unwrap().unwrap();
    assert!(lease.deadline() < asked + fixture.ttl(), "{:?}", lease.deadline());
}

/// Clocks differ: the holder stops before the store does.
pub async fn the_drift_is_taken_off_the_deadline(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    let term = fixture.clock().now().until(lease.deadline());
    let drift = fixture.ttl() / 100 + Duration::from_millis(2);
    assert!(term <= fixture.ttl() - drift, "{term:?}");
}

/// Work of unknown length: renewed for as long as it takes, under one token.
pub async fn a_renewed_lease_outlives_its_ttl(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    let (began, token) = (fixture.clock().now(), lease.token());
    let mut events = client.locks.events();
    while began.until(fixture.clock().now()) < fixture.ttl() * 3 {
        fixture.pass_until_renewed(&mut events).await;
        assert_eq!(lease.state(), LeaseState::Held);
        assert!(other.lock(&name).try_acquire().await.unwrap().is_none());
    }
    assert_eq!(lease.checkpoint().await.unwrap(), token);
    lease.release().await.unwrap();
}

/// A bounded term for those who want one.
pub async fn without_renewal_the_ttl_is_the_whole_term(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    fixture.pass_ttl().await;
    let loss = within_bound("the loss", lease.lost()).await;
    assert_eq!(loss.reason, LossReason::Expired);
    assert_eq!(client.faults.sent(Operation::Renew), 0);
    assert_eq!(lease.remaining(), Duration::ZERO);
}

/// Runaway renewal is capped, and the holder has until its TTL to roll back.
pub async fn max_hold_ends_it(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let cap = fixture.ttl() * 2;
    let lease = client.lock(&name).max_hold(cap).acquire().await.unwrap();
    let began = fixture.clock().now();
    let mut events = client.locks.events();
    let lost = fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert_eq!(reason(lease.state()), Some(LossReason::MaxHold));
    assert!(began.until(lost.at) + fixture.tolerance() >= cap, "{lost:?}");
    assert!(other.lock(&name).try_acquire().await.unwrap().is_none(), "not before it is dropped");
    drop(lease);
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("free once the holder is done", free).await;
}

/// No answer is doubt: side effects pause, and ownership is proved again.
pub async fn doubt_pauses_the_checkpoint_until_proved_again(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    let mut events = client.locks.events();
    client.faults.cut();
    fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Doubtful(_))).await;
    assert_eq!(lease.state(), LeaseState::Doubtful);
    let pausing = tokio::time::timeout(Duration::from_millis(20), lease.checkpoint()).await;
    assert!(pausing.is_err(), "nothing is proved while the store is silent");
    client.faults.heal();
    fixture.pass_until_renewed(&mut events).await;
    assert_eq!(lease.state(), LeaseState::Held);
    within_bound("the checkpoint", lease.checkpoint()).await.unwrap();
}

/// For callers who would rather stop than wonder.
pub async fn doubt_that_must_stop_is_loss_at_once(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Stop);
    let lease = lock.acquire().await.unwrap();
    let mut events = client.locks.events();
    client.faults.lose_request(Operation::Renew);
    let lost = fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert_eq!(reason(lease.state()), Some(LossReason::Unreachable));
    assert!(lost.at < lease.deadline(), "at once, not at the deadline");
    let error = lease.checkpoint().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)));
}

/// A bounded number of proofs, then loss.
pub async fn doubt_is_proved_a_bounded_number_of_times(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Prove { attempts: 2 });
    let lease = lock.acquire().await.unwrap();
    let mut events = client.locks.events();
    for _ in 0..4 {
        client.faults.refuse(Operation::Renew);
    }
    let lost = fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert_eq!(reason(lease.state()), Some(LossReason::Unreachable));
    assert!(lost.at < lease.deadline(), "by the count, not by the clock");
    assert_eq!(client.faults.sent(Operation::Renew), 3, "the first one, and two proofs");
}

/// RedLock.net#48, aioredlock: renewal by upsert takes a lost lock again.
pub async fn renewal_never_takes_a_lost_lock_again(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let lease = client.lock(&name).no_renewal().acquire().await.unwrap();
    let holder = Arc::new(Holder::this_process());
    let mut hold = Claim::new(lease.name().clone(), lease.ttl(), holder).hold(lease.token());
    hold.owner = lease.owner();
    fixture.pass_ttl().await;
    let verdicts = client.store.clone().renew(vec![hold]).await.unwrap();
    assert_eq!(verdicts, [Renewal::NotYours(LossReason::Expired)]);
    assert!(client.locks.inspect(&name).await.unwrap().lease().is_none());
    lease.renew().await.unwrap_err();
    assert!(client.lock(&name).try_acquire().await.unwrap().is_some());
}

/// Force-release reaches the old holder without its next renewal, with the reason.
pub async fn a_forced_holder_is_told_and_why(fixture: &Fixture) {
    let (holder, operator) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = holder.lock(&name).acquire().await.unwrap();
    let mut events = holder.locks.events();
    assert_eq!(operator.locks.force_release(&name, "it hangs").await.unwrap(), Some(lease.token()));
    fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    let Some(LossReason::Forced(forced)) = reason(lease.state()) else { panic!("{lease:?}") };
    assert_eq!(forced.reason, "it hangs");
    assert!(forced.by.contains("case"), "{forced:?}");
    let next = operator.lock(&name).try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > lease.token());
}

/// A process that was stopped past its deadline: no timer has fired yet, the first
/// call tells.
pub async fn a_process_that_slept_learns_on_the_first_call(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    fixture.stop(fixture.ttl() * 2);
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
    assert_eq!(lease.remaining(), Duration::ZERO);
    lease.checkpoint().await.unwrap_err();
    lease.verify().await.unwrap_err();
}

/// `verify` believes the store, not the clock.
pub async fn verify_asks_the_store(fixture: &Fixture) {
    let (holder, operator) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = holder.lock(&name).no_renewal().acquire().await.unwrap();
    assert_eq!(lease.verify().await.unwrap(), lease.token());
    operator.locks.force_release(&name, "gone").await.unwrap();
    let error = lease.verify().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
    assert!(matches!(reason(lease.state()), Some(LossReason::Forced(_))));
}

/// A definitive "not yours" is loss at once, long before the deadline.
pub async fn a_lease_taken_by_another_is_lost_at_once(fixture: &Fixture) {
    let (holder, operator) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = holder.lock(&name).acquire().await.unwrap();
    operator.locks.force_release(&name, "taken").await.unwrap();
    let next = operator.lock(&name).acquire().await.unwrap();
    let error = lease.renew().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
    assert_eq!(
        operator.locks.inspect(&name).await.unwrap().lease().unwrap().owner,
        Some(next.owner())
    );
    assert_eq!(next.state(), LeaseState::Held);
}

/// For work that knows how to be cancelled.
pub async fn loss_cancels_the_token(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    let cancelled = lease.cancellation_token();
    assert!(!cancelled.is_cancelled());
    let mut events = client.locks.events();
    fixture.pass_ttl().await;
    within_bound("the cancellation", cancelled.cancelled()).await;
    next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    assert!(lease.cancellation_token().is_cancelled());
}
