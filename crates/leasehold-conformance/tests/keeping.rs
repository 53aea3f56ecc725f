//! Regressions of the keeper, the state and the guard of a lease: what an adversary found.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Claim, Release};
use leasehold::{
    Error, ErrorKind, EventKind, Holder, Lease, LeaseState, LossReason, OnDoubt, Operation,
};
use leasehold_conformance::fixture::{Client, Fixture, eventually, next_event, within_bound};
use leasehold_conformance::stores;

fn fixture() -> Fixture {
    Fixture::new(stores::memory(), None)
}

/// Ends a lease behind its client's back, as a store does that lost its data.
async fn forget(client: &Client, lease: &Lease) {
    let holder = Arc::new(Holder::this_process());
    let claim = Claim::new(lease.name().clone(), lease.ttl(), holder);
    let mut hold = claim.hold(lease.token());
    hold.owner = lease.owner();
    let released = client.store.clone().release(vec![hold]).await.unwrap();
    assert_eq!(released, [Release::Released]);
}

/// `release(self)` lets go of its place with the keeper before it asks the store, and
/// `Drop` lets go of it once more afterwards: by then the place is another lease's,
/// which is then neither renewed nor fired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_under_way_does_not_unkeep_another_lease() {
    let fixture = fixture();
    let client = fixture.client().await;
    let first = client.lock(&fixture.name()).acquire().await.unwrap();
    let gate = client.faults.hold_reply(Operation::Release);
    let releasing = tokio::spawn(first.release());
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    let innocent = client.lock(&fixture.name()).acquire().await.unwrap();
    gate.send(()).unwrap();
    within_bound("the release", releasing).await.unwrap().unwrap();
    fixture.pass(fixture.ttl() * 2).await;
    assert!(client.faults.sent(Operation::Renew) > 0, "nobody renews the innocent lease");
    assert_eq!(innocent.state(), LeaseState::Held);
}

/// The same through an `Arc<Lease>` that leaves `run`: no fault and no race needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_left_its_scope_does_not_unkeep_another() {
    let fixture = fixture();
    let client = fixture.client().await;
    let escaped =
        client.lock(&fixture.name()).run(async |lease| Ok::<_, Error>(lease)).await.unwrap();
    let innocent = client.lock(&fixture.name()).acquire().await.unwrap();
    drop(escaped);
    fixture.pass(fixture.ttl() * 2).await;
    assert_eq!(innocent.state(), LeaseState::Held);
}

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

/// Renewing a lease that was given back is no success, and must not prolong it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_lease_cannot_be_renewed() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let escaped = Arc::new(parking_lot::Mutex::new(None));
    let kept = escaped.clone();
    for _ in 0..3 {
        client.faults.lose_request(Operation::Release);
    }
    let running = client.lock(&fixture.name()).run(async move |lease| {
        *kept.lock() = Some(lease);
        Ok::<_, Error>(())
    });
    let running = tokio::spawn(running);
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    let lease = escaped.lock().take().unwrap();
    assert_eq!(lease.state(), LeaseState::Released);
    let renewed = lease.renew().await;
    running.abort();
    assert!(renewed.is_err(), "renewed a lease that was given back");
}

/// The store said that the lease had gone before its release: an end that no reader
/// of the events hears of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_finds_nothing_is_told_as_a_loss() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    let mut events = client.locks.events();
    forget(&client, &lease).await;
    let error = lease.release().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld);
    let ended = async {
        loop {
            match events.next().await.unwrap().kind {
                EventKind::Lost(_) | EventKind::Released { .. } => return,
                _ => {}
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_millis(300), ended).await;
    assert!(told.is_ok(), "Granted, and then nothing for ever");
}

/// Renewals that never left (the store takes one request at a time) count as
/// unanswered: a lease is lost as unreachable though nobody asked about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_own_semaphore_is_not_doubt() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    // The keeper reads the limit when the client is made: make another on this backend.
    let locks = leasehold::Locks::on(client.store.clone()).clock(fixture.clock()).await.unwrap();
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

/// A release whose caller went away is sent again; that the first one was applied
/// makes the second find nothing, which is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_release_that_was_applied_is_not_told_as_a_loss() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    let mut events = client.locks.events();
    let _gate = client.faults.hold_reply(Operation::Release);
    let releasing = tokio::spawn(lease.release());
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    releasing.abort();
    let ended = async {
        loop {
            match events.next().await.unwrap().kind {
                EventKind::Released { .. } => return,
                EventKind::Lost(loss) => panic!("told as lost: {loss}"),
                _ => {}
            }
        }
    };
    within_bound("the end", ended).await;
}

/// A renewal that waited for its turn behind another was sent although its lease had ended
/// meanwhile: the store kept a lock for one more TTL that nobody may use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ended_while_its_renewal_waited_is_not_renewed() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone()).clock(fixture.clock());
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
    let lease = locks.inspect(&name).await.unwrap().lease.unwrap();
    assert!(lease.remaining <= Some(Duration::from_secs(3)), "extended: {:?}", lease.remaining);
}

/// Renewals went to the store in the order in which they were due: a lease that is over in
/// two seconds waited behind any number that have minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_that_is_over_first_is_renewed_first() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone()).clock(fixture.clock());
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
    let lease = locks.inspect(&name).await.unwrap().lease.unwrap();
    assert_eq!(lease.remaining, Some(short.ttl()), "others were before it");
}

/// A store that takes one request at a time and is silent was found out by each renewal on
/// its own, one time-out after the other: the last in line were not in doubt until their
/// own deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_is_doubt_for_those_behind_the_first_as_well() {
    const LEASES: usize = 12;
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone()).clock(fixture.clock()).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_can_tell_for_how_long() {
    let fixture = fixture();
    let client = fixture.client().await;
    let ttl = Duration::from_secs(3_600);
    let _lease = client.locks.lock(fixture.name()).ttl(ttl).acquire().await.unwrap();
    let seen = async || {
        fixture.stop(Duration::from_secs(10));
        !client.locks.longest_stall().longest.is_zero()
    };
    eventually("a stall", seen).await;
    let stall = client.locks.longest_stall();
    assert!(stall.longest > Duration::from_secs(9), "{stall:?}");
    assert_eq!(stall.shortest_ttl, Some(ttl));
}

/// Its TTL is forgotten with it, and what was kept for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standing_still_after_the_last_release_is_no_stall() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.lock(&fixture.name()).acquire().await.unwrap().release().await.unwrap();
    // What was looked for while there was a lease.
    fixture.pass(Duration::from_secs(1)).await;
    fixture.stop(Duration::from_secs(3_600));
    fixture.settle_down().await;
    let stall = client.locks.longest_stall();
    assert!(stall.longest < Duration::from_secs(60), "{stall:?}");
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

/// How a release ends, while time passes.
async fn release(fixture: &Fixture, lease: Lease) -> leasehold::Result<()> {
    let releasing = tokio::spawn(lease.release());
    let over = async || {
        fixture.advance(Duration::from_millis(1)).await;
        releasing.is_finished()
    };
    eventually("the release", over).await;
    releasing.await.unwrap()
}

/// That it is gone is its own doing if an earlier try may have arrived, whatever came of the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_applied_once_is_a_release() {
    let faults: [fn(&Client); 3] = [
        |client| client.faults.refuse(Operation::Release),
        |client| client.faults.swallow_reply(Operation::Release),
        |client| client.faults.lose_request(Operation::Release),
    ];
    for [first, second] in [[0, 1], [1, 0], [1, 2], [2, 1]] {
        let fixture = fixture();
        let client = fixture.impatient_client().await;
        let lease = client.lock(&fixture.name()).acquire().await.unwrap();
        faults[first](&client);
        faults[second](&client);
        let released = release(&fixture, lease).await;
        assert!(released.is_ok(), "{first} {second}: {released:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_release_of_what_is_gone_is_none() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    forget(&client, &lease).await;
    client.faults.refuse(Operation::Release);
    let error = release(&fixture, lease).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld, "{error}");
}

/// The only try that may have arrived was sent after the end of the lease: it gave nothing back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_late_is_none() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    client.faults.refuse(Operation::Release);
    client.faults.lose_request(Operation::Release);
    let mut events = client.locks.events();
    let releasing = tokio::spawn(lease.release());
    eventually("one try", async || client.faults.sent(Operation::Release) == 1).await;
    fixture.advance(fixture.ttl()).await;
    let told = |kind: &EventKind| matches!(kind, EventKind::Lost(_) | EventKind::Released { .. });
    let told = fixture.pass_until(&mut events, told).await;
    assert!(matches!(told.kind, EventKind::Lost(_)), "{told:?}");
    let error = within_bound("the release", releasing).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_the_background_is_tried_again_and_is_no_storm() {
    let fixture = fixture();
    let client = fixture.client().await;
    let ttl = Duration::from_secs(60);
    let lease = client.lock(&fixture.name()).ttl(ttl).acquire().await.unwrap();
    for _ in 0..2_000 {
        client.faults.refuse(Operation::Release);
    }
    drop(lease);
    fixture.pass(ttl / 2).await;
    let sent = client.faults.sent(Operation::Release);
    assert!((10..150).contains(&sent), "{sent} tries in half a minute");
}

/// A store that rejects a renewal has answered: it is not silent to those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_renewal_is_no_doubt_for_those_behind_it() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.faults.limit(1, 1);
    let locks = leasehold::Locks::on(client.store.clone()).clock(fixture.clock());
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

/// What is sent for a lost lease when its guard is dropped frees the lock, and is no second end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_that_is_dropped_ends_once() {
    for forced in [false, true] {
        let fixture = fixture();
        let client = fixture.client().await;
        let mut events = client.locks.events();
        let lock = client.lock(&fixture.name()).max_hold(fixture.ttl() / 4);
        let lease = lock.acquire().await.unwrap();
        match forced {
            true => _ = client.locks.force_release(lease.name(), "stuck").await.unwrap(),
            false => fixture.pass(fixture.ttl() / 4).await,
        }
        assert!(lease.verify().await.unwrap_err().loss().is_some());
        drop(lease);
        let free = async || lock.try_acquire().await.unwrap().is_some();
        eventually("it is free", free).await;
        fixture.settle_down().await;
        // Given back as well, once for each that was granted.
        drop((client, lock));
        let (mut granted, mut ended) = (0, 0);
        while let Some(event) = events.next().await {
            granted += usize::from(matches!(event.kind, EventKind::Granted { .. }));
            let ends = matches!(event.kind, EventKind::Lost(_) | EventKind::Released { .. });
            ended += usize::from(ends);
        }
        assert_eq!(granted, ended, "forced: {forced}");
    }
}
