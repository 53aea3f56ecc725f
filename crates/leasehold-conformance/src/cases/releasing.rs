//! Giving a lock back.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Claim, Release, Renewal};
use leasehold::{ErrorKind, Holder, LeaseState, Operation};

use crate::fixture::{Fixture, eventually, within_bound};

/// Release tells the truth: what is gone is not given back.
pub async fn a_lost_lease_cannot_be_released(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    fixture.pass_ttl().await;
    let error = lease.release().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld);
}

/// The release was applied, its reply lost: "not there" on the resend is a release.
pub async fn a_lost_reply_to_release_is_a_release(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    client.faults.swallow_reply(Operation::Release);
    let releasing = tokio::spawn(lease.release());
    let over = async || {
        fixture.pass(Duration::from_millis(5)).await;
        releasing.is_finished()
    };
    eventually("the release", over).await;
    releasing.await.unwrap().unwrap();
    assert!(other.lock(&name).try_acquire().await.unwrap().is_some());
}

/// A stranger's owner id opens nothing.
pub async fn nobody_else_can_release_or_renew(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    let holder = Arc::new(Holder::this_process());
    let stranger = Claim::new(lease.name().clone(), fixture.ttl(), holder).hold(lease.token());
    let released = client.store.clone().release(vec![stranger.clone()]).await.unwrap();
    assert_eq!(released, [Release::NotHeld]);
    let renewed = client.store.clone().renew(vec![stranger]).await.unwrap();
    assert!(matches!(renewed[0], Renewal::NotYours(_)));
    assert_eq!(
        client.locks.inspect(&name).await.unwrap().lease().unwrap().owner,
        Some(lease.owner())
    );
    lease.release().await.unwrap();
}

/// rslock#4, #30: a drop that blocks the runtime, or does nothing.
pub async fn a_dropped_lease_is_released(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    drop(client.lock(&name).acquire().await.unwrap());
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("the lock is free", free).await;
}

/// Cancelling a release does not keep the lock.
pub async fn a_dropped_release_goes_on(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    client.faults.lose_request(Operation::Release);
    let releasing = tokio::spawn(lease.release());
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    releasing.abort();
    let free = async || {
        fixture.advance(Duration::from_millis(1)).await;
        other.lock(&name).try_acquire().await.unwrap().is_some()
    };
    eventually("the lock is free", free).await;
}

/// redisson#7272: renewal that outlives the unlock.
pub async fn nothing_is_renewed_after_release(fixture: &Fixture) {
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    lease.release().await.unwrap();
    fixture.pass(fixture.ttl() * 2).await;
    assert_eq!(client.faults.sent(Operation::Renew), 0);
}

/// etcd#22082: a retried unlock deletes a newer lock.
pub async fn a_late_release_does_not_end_a_newer_lease(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    let late = client.faults.hold_request(Operation::Release);
    let releasing = tokio::spawn(lease.release());
    let over = async || {
        fixture.pass(Duration::from_millis(5)).await;
        releasing.is_finished()
    };
    eventually("the release", over).await;
    let next = other.lock(&name).acquire().await.unwrap();
    late.deliver().await;
    assert_eq!(
        other.locks.inspect(&name).await.unwrap().lease().unwrap().owner,
        Some(next.owner())
    );
    assert_eq!(next.verify().await.unwrap(), next.token());
    assert_eq!(next.state(), LeaseState::Held);
}

/// node-redlock#313: a release that hangs or retries for ever.
pub async fn a_silent_store_does_not_hang_a_release(fixture: &Fixture) {
    let (client, other) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = client.lock(&name).acquire().await.unwrap();
    client.faults.cut();
    let releasing = tokio::spawn(lease.release());
    let over = async || {
        fixture.pass(Duration::from_millis(5)).await;
        releasing.is_finished()
    };
    eventually("an answer", over).await;
    let error = within_bound("an answer", releasing).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    client.faults.heal();
    let free = async || {
        fixture.advance(Duration::from_millis(1)).await;
        other.lock(&name).try_acquire().await.unwrap().is_some()
    };
    eventually("the release is sent again", free).await;
}
