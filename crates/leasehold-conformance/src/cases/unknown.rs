//! Requests that may or may not have been applied.

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, Operation};

use crate::fixture::{Fixture, eventually, within_bound};

/// "Timed out" hid a success: the store is asked, and the lease is ours.
pub async fn a_lost_reply_is_adopted(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    client.faults.swallow_reply(Operation::Acquire);
    let lease = within_bound("acquire", client.lock(&name).acquire()).await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(client.faults.sent(Operation::Acquire), 1, "asked, not acquired twice");
    assert!(other.lock(&name).try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
    assert!(other.lock(&name).try_acquire().await.unwrap().is_some());
}

/// rueidislock: its own key reported as another's.
pub async fn a_lost_reply_to_try_is_not_reported_as_held(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    client.faults.swallow_reply(Operation::Acquire);
    let lease = within_bound("try", client.lock(&fixture.name()).try_acquire()).await.unwrap();
    assert!(lease.is_some());
}

/// A request that never arrived is settled, and asked again with a fresh owner.
pub async fn a_lost_request_is_asked_again(fixture: &Fixture) {
    let client = fixture.impatient_client().await;
    client.faults.lose_request(Operation::Acquire);
    let lease = within_bound("acquire", client.lock(&fixture.name()).acquire()).await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(client.faults.sent(Operation::Acquire), 2);
}

/// The first request was still on its way when "is it mine?" said no: its owner has a tombstone.
pub async fn a_late_request_of_a_settled_owner_takes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let late = client.faults.hold_request(Operation::Acquire);
    let lease = within_bound("acquire", client.lock(&name).acquire()).await.unwrap();
    lease.release().await.unwrap();
    late.deliver().await;
    let info = other.locks.inspect(&name).await.unwrap();
    assert!(info.lease().is_none() && info.waiters == 0, "{info:?}");
}

/// The same for a caller that went away: what arrives later takes nothing.
pub async fn a_late_request_of_a_cancelled_acquire_takes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let late = client.faults.hold_request(Operation::Acquire);
    let lock = client.lock(&name);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    eventually("the claim is sent", async || client.faults.sent(Operation::Acquire) == 1).await;
    acquiring.abort();
    eventually("it is settled", async || client.faults.answered(Operation::Settle) == 1).await;
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("the lock is free", free).await;
    late.deliver().await;
    eventually("the lock stays free", free).await;
    assert_eq!(other.locks.inspect(&name).await.unwrap().waiters, 0);
}

/// A store that certainly did nothing is an error at once.
pub async fn a_refused_request_is_an_error_that_leaves_nothing(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    client.faults.refuse(Operation::Acquire);
    let error = client.lock(&name).acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert_eq!(client.faults.sent(Operation::Settle), 0, "nothing to settle");
    assert!(client.lock(&name).try_acquire().await.unwrap().is_some());
}

/// A store that never answers does not hang its callers, and is undone when it heals.
pub async fn a_silent_store_is_an_error_in_bounded_time(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    client.faults.swallow_reply(Operation::Acquire);
    for _ in 0..3 {
        client.faults.lose_request(Operation::Settle);
    }
    // The pauses between questions are the client's clock's.
    let lock = client.lock(&name);
    let acquiring = tokio::spawn(async move { lock.try_acquire().await });
    let over = async || {
        fixture.pass(Duration::from_millis(20)).await;
        acquiring.is_finished()
    };
    eventually("an answer", over).await;
    let error = acquiring.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.outcome(), leasehold::Outcome::Unknown);
    // Well before the TTL: the clock hardly moved, and the lock is undone.
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("the lock is free again", free).await;
}

/// node-redlock#296, #299: acquire returned a lock that had already expired.
pub async fn a_grant_after_its_own_deadline_is_not_returned(fixture: &Fixture) {
    let (client, other) = (fixture.patient_client().await, fixture.client().await);
    let name = fixture.name();
    let gate = client.faults.hold_reply(Operation::Acquire);
    let lock = client.lock(&name);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    fixture.advance(fixture.ttl()).await;
    gate.send(()).unwrap();
    let again = async || {
        fixture.pass(Duration::from_millis(5)).await;
        acquiring.is_finished()
    };
    eventually("a second try", again).await;
    let lease = acquiring.await.unwrap().unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(client.faults.sent(Operation::Acquire), 2);
    assert!(other.lock(&name).try_acquire().await.unwrap().is_none());
}

/// The same for one that does not wait: its own late grant is not another's lock.
pub async fn a_late_grant_to_try_is_not_reported_as_held(fixture: &Fixture) {
    let (client, other) = (fixture.patient_client().await, fixture.client().await);
    let name = fixture.name();
    let gate = client.faults.hold_reply(Operation::Acquire);
    let lock = client.lock(&name);
    let acquiring = tokio::spawn(async move { lock.try_acquire().await });
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    // Past the holder's deadline, but not yet past the store's.
    fixture.advance(fixture.ttl() - Duration::from_millis(15)).await;
    gate.send(()).unwrap();
    let again = async || {
        fixture.advance(Duration::from_millis(1)).await;
        acquiring.is_finished()
    };
    eventually("a second try", again).await;
    let lease = acquiring.await.unwrap().unwrap();
    assert_eq!(lease.expect("nobody else has it").state(), LeaseState::Held);
}
