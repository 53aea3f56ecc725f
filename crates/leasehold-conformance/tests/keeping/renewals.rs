//! Renewals: what travels together, in which order, and what a store that fails costs.

use std::time::Duration;

use leasehold::{EventKind, LeaseState, LossReason, OnDoubt, Operation};
use leasehold_conformance::fixture::{eventually, next_event};

use crate::fixture;

/// One request for leases of several TTLs waits a sixth of the *shortest*: a short
/// neighbour makes a long lease doubtful, or with `Stop` lost, after 10 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_with_a_short_ttl_does_not_cost_a_long_lease() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lock = client.locks.lock(fixture.name()).ttl(Duration::from_secs(6));
    let long = lock.on_doubt(OnDoubt::Stop).acquire().await.unwrap();
    // Not yet due, then both at once.
    fixture.advance(Duration::from_millis(1990)).await;
    let short = client.locks.lock(fixture.name()).ttl(Duration::from_millis(60));
    let _short = short.acquire().await.unwrap();
    let gate = client.faults.hold_reply(Operation::Renew);
    fixture.advance(Duration::from_millis(21)).await;
    eventually("a renewal is sent", async || client.faults.sent(Operation::Renew) >= 1).await;
    // A healthy answer by the long lease's own measure (a sixth of 6 s).
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _ = gate.send(());
    assert_eq!(long.state(), LeaseState::Held, "four seconds before its deadline");
}

/// "As long as the deadline allows" is `u32::MAX` attempts; the pause between them is
/// then nothing at all, and a store that refuses is asked as fast as it can refuse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_attempts_are_no_storm() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Prove { attempts: u32::MAX });
    let _lease = lock.acquire().await.unwrap();
    for _ in 0..2000 {
        client.faults.refuse(Operation::Renew);
    }
    fixture.advance(fixture.ttl() / 3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sent = client.faults.sent(Operation::Renew);
    assert!(sent < 100, "{sent} renewals of one lease while the clock stood still");
}

/// Renewals that never left (the store takes one request at a time) count as
/// unanswered: a lease is lost as unreachable though nobody asked about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_own_semaphore_is_not_doubt() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    // The keeper reads the limit when the client is made: make another on this backend.
    let locks = leasehold::Locks::on(client.store.clone()).await.unwrap();
    let slow = locks.lock(fixture.name()).ttl(Duration::from_secs(12)).acquire().await.unwrap();
    let gate = client.faults.hold_reply(Operation::Renew);
    fixture.advance(Duration::from_secs(4)).await;
    eventually("one renewal is under way", async || client.faults.sent(Operation::Renew) == 1)
        .await;
    let quick = locks.lock(fixture.name()).ttl(Duration::from_millis(1500));
    let quick = quick.on_doubt(OnDoubt::Stop).acquire().await.unwrap();
    fixture.advance(Duration::from_millis(500)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (sent, state) = (client.faults.sent(Operation::Renew), quick.state());
    let _ = gate.send(());
    drop(slow);
    let unasked =
        matches!(&state, LeaseState::Lost(loss) if loss.reason == LossReason::Unreachable);
    assert!(!(unasked && sent == 1), "lost as unreachable; only the other was ever asked about");
}

/// A renewal that waited for its turn behind another was sent although its lease had ended
/// meanwhile: the store kept a lock for one more TTL that nobody may use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ended_while_its_renewal_waited_is_not_renewed() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone());
    let locks = locks.request_timeout(Duration::from_secs(60)).await.unwrap();
    let _slow = locks.lock(fixture.name()).ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let gate = client.faults.hold_reply(Operation::Renew);
    fixture.advance(Duration::from_secs(100)).await;
    eventually("one renewal is under way", async || client.faults.sent(Operation::Renew) == 1)
        .await;
    let name = fixture.name();
    let capped = locks.lock(&name).ttl(Duration::from_secs(6)).max_hold(Duration::from_secs(3));
    let capped = capped.acquire().await.unwrap();
    fixture.pass(Duration::from_secs(3)).await;
    assert!(matches!(capped.state(), LeaseState::Lost(loss) if loss.reason == LossReason::MaxHold));
    let _ = gate.send(());
    fixture.settle_down().await;
    let lease = locks.inspect(&name).await.unwrap().leases.remove(0);
    assert!(lease.remaining <= Some(Duration::from_secs(3)), "extended: {:?}", lease.remaining);
}

/// Renewals went to the store in the order in which they were due: a lease that is over in
/// two seconds waited behind any number that have minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_that_is_over_first_is_renewed_first() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone());
    let locks = locks.request_timeout(Duration::from_secs(60)).await.unwrap();
    let mut long = Vec::new();
    for _ in 0..8 {
        let lock = locks.lock(fixture.name()).ttl(Duration::from_secs(300));
        long.push(lock.acquire().await.unwrap());
    }
    let first = client.faults.hold_reply(Operation::Renew);
    let _second = client.faults.hold_reply(Operation::Renew);
    fixture.advance(Duration::from_secs(100)).await;
    eventually("one renewal is under way", async || client.faults.sent(Operation::Renew) == 1)
        .await;
    let name = fixture.name();
    let short = locks.lock(&name).ttl(Duration::from_secs(3)).acquire().await.unwrap();
    fixture.pass(Duration::from_secs(1)).await;
    let _ = first.send(());
    eventually("the second is", async || client.faults.sent(Operation::Renew) == 2).await;
    fixture.settle_down().await;
    let lease = locks.inspect(&name).await.unwrap().leases.remove(0);
    assert_eq!(lease.remaining, Some(short.ttl()), "others were before it");
}

/// A store that takes one request at a time and is silent was found out by each renewal on
/// its own, one time-out after the other: the last in the queue were not in doubt until their
/// own deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_is_doubt_for_those_behind_the_first_as_well() {
    const LEASES: usize = 12;
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone()).await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        let lock = locks.lock(fixture.name()).ttl(Duration::from_secs(6));
        leases.push(lock.acquire().await.unwrap());
    }
    client.faults.cut();
    fixture.advance(Duration::from_secs(2)).await;
    eventually("all are in doubt", async || {
        leases.iter().all(|lease| lease.state() == LeaseState::Doubtful)
    })
    .await;
    let sent = client.faults.sent(Operation::Renew);
    assert!(sent < LEASES, "each of them had to ask by itself: {sent} requests");
    client.faults.heal();
}

/// The keeper looks at its leases in portions; a hint may be about any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_finds_its_lease_among_thousands() {
    let fixture = fixture();
    let client = fixture.client().await;
    let mut leases = Vec::new();
    for _ in 0..3_000 {
        leases.push(client.lock(&fixture.name()).acquire().await.unwrap());
    }
    // The clock stands still: no renewal is due. A hint may be missed, while nobody listens.
    let mut found = false;
    for lease in leases.iter().rev().take(50) {
        client.locks.force_release(lease.name(), "a test").await.unwrap();
        let lost = tokio::time::timeout(Duration::from_millis(500), lease.lost()).await;
        if let Ok(loss) = lost {
            assert!(matches!(loss.reason, LossReason::Forced(_)), "{loss}");
            found = true;
            break;
        }
    }
    assert!(found, "none of the last was told");
    assert_eq!(leases[0].state(), LeaseState::Held);
}

/// A store that cannot be reached is not asked again for each lease of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_could_not_be_sent_are_not_sent_one_by_one() {
    const LEASES: usize = 8;
    let fixture = fixture();
    let client = fixture.client().await;
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        leases.push(client.lock(&fixture.name()).acquire().await.unwrap());
    }
    for _ in 0..2 * LEASES {
        client.faults.refuse(Operation::Renew);
    }
    fixture.advance(fixture.ttl() / 3).await;
    eventually("all are in doubt", async || {
        leases.iter().all(|lease| lease.state() == LeaseState::Doubtful)
    })
    .await;
    fixture.settle_down().await;
    assert_eq!(client.faults.largest_batch(), LEASES);
    assert_eq!(client.faults.sent(Operation::Renew), 1);
}

/// One that the store does not know fails its whole request: no doubt for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_refused_batch_are_not_in_doubt() {
    let fixture = fixture();
    let client = fixture.client().await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        let lock = client.lock(&fixture.name()).on_doubt(OnDoubt::Stop);
        leases.push(lock.acquire().await.unwrap());
    }
    let mut events = client.locks.events();
    client.faults.fail_batches();
    fixture.advance(fixture.ttl() / 3).await;
    for _ in &leases {
        let ended = |kind: &EventKind| matches!(kind, EventKind::Renewed | EventKind::Lost(_));
        let told = next_event(&mut events, ended).await;
        assert!(matches!(told.kind, EventKind::Renewed), "{told:?}");
    }
    assert_eq!(client.faults.largest_batch(), leases.len());
}

/// A store that rejects a renewal has answered: it is not silent to those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_renewal_is_no_doubt_for_those_behind_it() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone());
    let locks = locks.request_timeout(Duration::from_secs(60)).await.unwrap();
    let _slow = locks.lock(fixture.name()).ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let gate = client.faults.hold_rejection(Operation::Renew);
    fixture.advance(Duration::from_secs(100)).await;
    eventually("one renewal is under way", async || client.faults.sent(Operation::Renew) == 1)
        .await;
    let quick = locks.lock(fixture.name()).ttl(Duration::from_secs(6));
    let _quick = quick.on_doubt(OnDoubt::Stop).acquire().await.unwrap();
    let mut events = locks.events();
    fixture.advance(Duration::from_secs(2)).await;
    fixture.settle_down().await;
    // For longer than its own answer may take.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    gate.send(()).unwrap();
    let ended = |kind: &EventKind| matches!(kind, EventKind::Renewed | EventKind::Lost(_));
    let told = next_event(&mut events, ended).await;
    assert!(matches!(told.kind, EventKind::Renewed), "{told:?}");
}
