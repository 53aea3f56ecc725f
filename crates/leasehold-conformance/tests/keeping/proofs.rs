//! Proofs beside the keeper's: renewing by hand, and `verify`.

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, LossReason, OnDoubt, Operation};
use leasehold_conformance::fixture::eventually;
use tokio::time::Instant;

use crate::{fixture, forget};

/// A lease that its holder renews by hand: after one lost reply the keeper proves it
/// again, the store says yes, and nobody believes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_renewed_by_hand_leaves_doubt_when_the_store_proves_it() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    client.faults.lose_request(Operation::Renew);
    lease.renew().await.unwrap_err();
    assert_eq!(lease.state(), LeaseState::Doubtful);
    let proved = async || {
        fixture.pass(Duration::from_millis(5)).await;
        client.faults.sent(Operation::Renew) >= 2
    };
    eventually("it is asked about again", proved).await;
    // The clock stands still from here on: only the answer can lift the doubt.
    eventually("the answer counts", async || lease.state() == LeaseState::Held).await;
}

/// The late failure of an old request takes back what a newer one proved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_failure_does_not_undo_a_newer_proof() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Stop);
    let lease = lock.acquire().await.unwrap();
    client.faults.lose_request(Operation::Renew);
    fixture.advance(fixture.ttl() / 3).await;
    eventually("the keeper asks", async || client.faults.sent(Operation::Renew) == 1).await;
    lease.renew().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    // The keeper's own request times out: a sixth of the TTL.
    tokio::time::sleep(fixture.ttl() / 4).await;
    assert_eq!(lease.state(), LeaseState::Held, "proved after the request that failed was sent");
}

/// `verify` lifts doubt but arranges no renewal. Taken for a newer proof, it made the
/// keeper forget its own unanswered renewal: nobody renewed the lease again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_verified_during_a_lost_renewal_is_renewed_again() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    client.faults.lose_request(Operation::Renew);
    fixture.advance(fixture.ttl() / 3).await;
    eventually("the keeper asks", async || client.faults.sent(Operation::Renew) == 1).await;
    lease.verify().await.unwrap();
    // The keeper's own request times out: a sixth of the TTL.
    tokio::time::sleep(fixture.ttl() / 4).await;
    fixture.pass(fixture.ttl() * 2).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Whom an operator released by force before is on record for as long as nobody else is: that
/// is not why this lease has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_says_why_a_lease_has_gone() {
    for taken in [false, true] {
        let fixture = fixture();
        let (client, other) = (fixture.client().await, fixture.client().await);
        let name = fixture.name();
        let _before = client.lock(&name).acquire().await.unwrap();
        other.locks.force_release(&name, "the lease before").await.unwrap();
        let lease = client.lock(&name).no_renewal().acquire().await.unwrap();
        forget(&client, &lease).await;
        let _next = match taken {
            true => Some(other.lock(&name).acquire().await.unwrap()),
            false => None,
        };
        let error = lease.verify().await.unwrap_err();
        let reason = if taken { LossReason::Taken } else { LossReason::Expired };
        assert_eq!(error.loss().map(|loss| &loss.reason), Some(&reason));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verify_without_an_answer_changes_nothing() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    let other = client.lock(&fixture.name()).acquire().await.unwrap();
    client.faults.refuse(Operation::Inspect);
    let error = lease.verify().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!((lease.state(), other.state()), (LeaseState::Held, LeaseState::Held));
}

/// Whoever renews by hand gets a whole TTL each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_renewed_by_hand_lasts_a_whole_term_again() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    let term = lease.remaining();
    fixture.advance(fixture.ttl() / 2).await;
    assert!(lease.remaining() < term);
    lease.renew().await.unwrap();
    assert_eq!(lease.remaining(), term);
}

/// Tokio's timers have a clock of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_is_told_to_tokios_timers_as_well() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    // The fixture's clock stands still.
    let (before, remaining) = (Instant::now(), lease.remaining());
    let deadline = lease.deadline_instant();
    assert!((before + remaining..=Instant::now() + remaining).contains(&deadline));
    fixture.pass_ttl().await;
    assert!(lease.deadline_instant() <= Instant::now(), "it is over");
}
