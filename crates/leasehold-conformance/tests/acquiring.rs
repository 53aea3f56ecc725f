//! Regressions of acquiring and waiting: what an adversary found.

use std::time::Duration;

use leasehold::{ErrorKind, EventKind, Lease, Lock, Operation, Result};
use leasehold_conformance::faulty_backend::HeldRequest;
use leasehold_conformance::fixture::{Client, Fixture, eventually, next_event, within_bound};
use leasehold_conformance::stores;
use tokio::task::JoinHandle;

fn fixture() -> Fixture {
    Fixture::new(stores::memory(), None)
}

fn acquire(lock: Lock) -> JoinHandle<Result<Lease>> {
    tokio::spawn(async move { lock.acquire().await })
}

async fn until_waiters(client: &Client, name: &str, count: usize) {
    let waits = async || client.locks.inspect(name).await.unwrap().waiters == count;
    eventually("the right number of waiters", waits).await;
}

/// A pushed grant lasts three seconds, but one per cent of the *TTL* is taken off:
/// from 5 minutes on nothing is left, so the first in the queue throws its grant away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_with_a_long_ttl_keeps_its_turn() {
    let fixture = fixture();
    let (first, second, third) =
        (fixture.client().await, fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let mut events = third.locks.events();
    let long = acquire(second.lock(&name).ttl(Duration::from_secs(600)));
    until_waiters(&first, &name, 1).await;
    let behind = acquire(third.lock(&name));
    until_waiters(&first, &name, 2).await;
    lease.release().await.unwrap();
    // The clock stands still: the first holder keeps the lock.
    let first_served = tokio::select! {
        _ = next_event(&mut events, |kind| matches!(kind, EventKind::Granted { .. })) => "the second",
        () = async { while !long.is_finished() { tokio::time::sleep(Duration::from_millis(1)).await } } => "the first",
    };
    behind.abort();
    assert_eq!(first_served, "the first");
}

/// With only such waiters the lock goes round: each throws its grant to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_with_long_ttls_do_not_throw_the_lock_around() {
    let fixture = fixture();
    let holder = fixture.client().await;
    let name = fixture.name();
    let lease = holder.lock(&name).acquire().await.unwrap();
    let mut waiting = Vec::new();
    let mut clients = Vec::new();
    for place in 0..6 {
        let client = fixture.client().await;
        waiting.push(acquire(client.lock(&name).ttl(Duration::from_secs(600))));
        until_waiters(&holder, &name, place + 1).await;
        clients.push(client);
    }
    lease.release().await.unwrap();
    let served = async || waiting.iter().any(JoinHandle::is_finished);
    eventually("one of them is served", served).await;
    let asked: usize = clients.iter().map(|client| client.faults.sent(Operation::Acquire)).sum();
    assert!(asked <= 7, "{asked} claims for one hand-over");
}

/// Patience ran out, but nobody held anything: the store was silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_is_not_reported_as_held_by_another() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let lock = client.lock(&fixture.name()).wait(Duration::from_millis(500));
    client.faults.cut();
    let acquiring = acquire(lock);
    eventually("it asked", async || client.faults.sent(Operation::Acquire) >= 1).await;
    fixture.advance(Duration::from_millis(500)).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(!matches!(error.kind(), ErrorKind::Held(_)), "{error}");
}

/// Contract 4: it never reports "held by another" for its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_own_key_is_not_reported_as_held_by_another() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let lock = client.lock(&fixture.name()).wait(Duration::from_millis(500));
    client.faults.swallow_reply(Operation::Acquire);
    for _ in 0..2 {
        client.faults.lose_request(Operation::Settle);
    }
    let acquiring = acquire(lock);
    eventually("it asked", async || client.faults.sent(Operation::Acquire) >= 1).await;
    fixture.advance(Duration::from_millis(500)).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(!matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}");
}

/// A client that waits, and whose second claim (after an error of `wait`) is held back.
async fn waits_with_a_claim_under_way(
    fixture: &Fixture,
    client: &Client,
    name: &str,
) -> (JoinHandle<Result<Lease>>, HeldRequest) {
    client.faults.refuse(Operation::Wait);
    let mut events = client.locks.events();
    let waiting = acquire(client.lock(name));
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    let late = client.faults.hold_request(Operation::Acquire);
    let asked = async || {
        fixture.advance(Duration::from_millis(1)).await;
        client.faults.sent(Operation::Acquire) >= 2
    };
    eventually("it claims again", asked).await;
    (waiting, late)
}

/// A second claim of one owner is still on its way when the first one's grant is
/// adopted: settling leaves a tombstone only for those it does not find. Released, the lock
/// must not be taken by the late claim for a whole TTL while nobody holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_second_claim_of_an_adopted_owner_takes_nothing() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.impatient_client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let (waiting, late) = waits_with_a_claim_under_way(&fixture, &second, &name).await;
    lease.release().await.unwrap();
    let adopted = within_bound("the grant", waiting).await.unwrap().unwrap();
    let settled = second.faults.answered(Operation::Settle);
    adopted.release().await.unwrap();
    eventually("it has a tombstone", async || second.faults.answered(Operation::Settle) > settled)
        .await;
    late.deliver().await;
    let info = first.locks.inspect(&name).await.unwrap();
    assert!(info.lease().is_none(), "an orphan: {info:?}");
}

/// The same for a caller that went away: undoing finds a grant, gives it back, and
/// leaves the owner a tombstone as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_second_claim_of_a_cancelled_owner_takes_nothing() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let (waiting, late) = waits_with_a_claim_under_way(&fixture, &second, &name).await;
    lease.release().await.unwrap();
    waiting.abort();
    eventually("it is undone", async || second.faults.answered(Operation::Settle) >= 2).await;
    late.deliver().await;
    let info = first.locks.inspect(&name).await.unwrap();
    assert!(info.lease().is_none(), "an orphan: {info:?}");
}

/// One lost answer to `wait`, and the acquire hangs for ever: nothing above the trait
/// looks again, and the trait does not oblige the store to come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_wait_does_not_hang_the_acquire() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    second.faults.lose_request(Operation::Wait);
    let waiting = acquire(second.lock(&name));
    until_waiters(&first, &name, 1).await;
    lease.release().await.unwrap();
    fixture.pass(Duration::from_secs(60)).await;
    // The lock has been free for a minute.
    let _granted = within_bound("the grant", waiting).await.unwrap().unwrap();
}

/// A batch that was refused as a whole is sent one by one, in turn, each with the
/// whole time-out: the last caller waits for all the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_a_refused_batch_does_not_wait_for_all_the_others() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    client.faults.limit(64, 1);
    let gate = client.faults.hold_reply(Operation::Acquire);
    let under_way = client.lock("under way");
    let _first = tokio::spawn(async move { under_way.try_acquire().await });
    eventually("one is under way", async || client.faults.sent(Operation::Acquire) == 1).await;
    client.faults.fail_batches();
    for _ in 0..100 {
        client.faults.lose_request(Operation::Acquire);
    }
    let mut tasks = Vec::new();
    let mut events = client.locks.events();
    for _ in 0..30 {
        let lock = client.lock(&fixture.name());
        tasks.push(tokio::spawn(async move { lock.try_acquire().await }));
        next_event(&mut events, |kind| matches!(kind, EventKind::Asked)).await;
    }
    gate.send(()).unwrap();
    let first_round = async || client.faults.sent(Operation::Settle) >= 30;
    eventually("every claim is settled once", first_round).await;
    // One after the other it would be one; a busy machine may not start all 30 before the first
    // gives up.
    assert!(client.faults.most_under_way() >= 8, "{}", client.faults.most_under_way());
}

/// Waiters that are long dead are counted and listed for ever, and their lock's
/// record is never swept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_not_listed_for_ever() {
    let fixture = fixture();
    let (first, dead) = (fixture.impatient_client().await, fixture.impatient_client().await);
    let watcher = fixture.client().await;
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let vanished = acquire(dead.lock(&name));
    until_waiters(&watcher, &name, 1).await;
    first.faults.cut();
    dead.faults.cut();
    vanished.abort();
    drop(lease);
    fixture.pass(Duration::from_secs(30)).await;
    let list = watcher.locks.list(&name).await.unwrap();
    assert!(list.is_empty(), "{list:?}");
}

/// The same for a lease that was lost: its release settles the late claim, its loss did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_second_claim_of_a_lost_lease_takes_nothing() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.impatient_client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let (waiting, late) = waits_with_a_claim_under_way(&fixture, &second, &name).await;
    lease.release().await.unwrap();
    let adopted = within_bound("the grant", waiting).await.unwrap().unwrap();
    first.locks.force_release(&name, "stuck").await.unwrap();
    within_bound("the loss", adopted.lost()).await;
    let settled = second.faults.answered(Operation::Settle);
    drop(adopted);
    eventually("it has a tombstone", async || second.faults.answered(Operation::Settle) > settled)
        .await;
    late.deliver().await;
    let info = first.locks.inspect(&name).await.unwrap();
    assert!(info.lease().is_none(), "an orphan: {info:?}");
}

/// A store that is away for a moment does not end a wait, however long that has lasted:
/// the time that a waiter heard nothing because there was nothing to say is no outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_wait_bears_a_refusal_as_a_short_one_does() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name));
    until_waiters(&first, &name, 1).await;
    second.faults.refuse(Operation::Acquire);
    let asked = async || {
        fixture.pass(Duration::from_millis(200)).await;
        second.faults.sent(Operation::Acquire) >= 2
    };
    eventually("it claims again", asked).await;
    fixture.pass(Duration::from_secs(1)).await;
    lease.release().await.unwrap();
    let _granted = within_bound("the grant", waiting).await.unwrap().unwrap();
}

/// A grant that comes too late is undone. If that gets no answer, a fresh owner must not ask:
/// it would find its predecessor's lock and call it another's. (Found by the model of the
/// contract: `undo-gives-up`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_grant_that_cannot_be_undone_is_an_error() {
    let fixture = fixture();
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let gate = client.faults.hold_reply(Operation::Acquire);
    let lock = client.lock(&name);
    let trying = tokio::spawn(async move { lock.try_acquire().await });
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    for _ in 0..3 {
        client.faults.refuse(Operation::Settle);
    }
    // Past the holder's deadline, but not yet past the store's.
    fixture.advance(fixture.ttl() - Duration::from_millis(15)).await;
    gate.send(()).unwrap();
    let over = async || {
        fixture.advance(Duration::from_millis(1)).await;
        trying.is_finished()
    };
    eventually("an answer", over).await;
    let error = trying.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert_eq!(client.faults.sent(Operation::Acquire), 1, "no fresh owner asked");
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("it is undone in the background", free).await;
}

/// A store that can be asked and never gets a claim: three owners are enough to see that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_never_arrive_are_an_error() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    for _ in 0..10 {
        client.faults.lose_request(Operation::Acquire);
    }
    let acquiring = acquire(client.lock(&fixture.name()));
    let error = within_bound("an answer", acquiring).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(client.faults.sent(Operation::Acquire), 3);
}

/// Errors that were borne in the queue counted as owners used up, past their number: then the
/// acquire went on for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_never_arrive_are_an_error_after_refusals_as_well() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.impatient_client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let mut events = second.locks.events();
    second.faults.refuse(Operation::Wait);
    let waiting = acquire(second.lock(&name));
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    for _ in 0..3 {
        second.faults.refuse(Operation::Acquire);
    }
    for _ in 0..10 {
        second.faults.lose_request(Operation::Acquire);
    }
    let over = async || {
        fixture.advance(Duration::from_millis(1)).await;
        waiting.is_finished()
    };
    eventually("an answer", over).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(second.faults.sent(Operation::Acquire), 1 + 3 + 3);
}

/// In the queue, a store that refuses is borne for a TTL, and asked less and less often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_in_the_queue_is_borne_for_a_ttl_and_is_no_storm() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let (name, ttl) = (fixture.name(), Duration::from_secs(60));
    let _lease = first.lock(&name).ttl(10 * ttl).acquire().await.unwrap();
    let mut events = second.locks.events();
    second.faults.refuse(Operation::Wait);
    let waiting = acquire(second.lock(&name).ttl(ttl));
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    for _ in 0..2_000 {
        second.faults.refuse(Operation::Acquire);
    }
    fixture.pass(ttl - Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "not borne for a TTL");
    let sent = second.faults.sent(Operation::Acquire);
    assert!(sent < 300, "{sent} claims in a minute");
    fixture.pass(Duration::from_secs(3)).await;
    let error = within_bound("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    let mut told = 0;
    next_event(&mut events, |kind| matches!(kind, EventKind::Troubled(_))).await;
    let ended = |kind: &EventKind| {
        told += usize::from(matches!(kind, EventKind::Troubled(_)));
        matches!(kind, EventKind::Refused { .. })
    };
    next_event(&mut events, ended).await;
    assert_eq!(told, 0, "told more than once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_asks_again_is_told_once_that_it_waits() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    for _ in 0..3 {
        second.faults.refuse(Operation::Wait);
    }
    let mut events = second.locks.events();
    let waiting = acquire(second.lock(&name));
    let asked = async || {
        fixture.advance(Duration::from_millis(1)).await;
        second.faults.sent(Operation::Wait) == 4
    };
    eventually("it asks again", asked).await;
    lease.release().await.unwrap();
    let mut told = 0;
    let granted = |kind: &EventKind| {
        told += usize::from(matches!(kind, EventKind::Waiting(_)));
        matches!(kind, EventKind::Granted { .. })
    };
    next_event(&mut events, granted).await;
    assert_eq!(told, 1);
    let _granted = within_bound("the grant", waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_grant_without_renewal_is_not_asked_about() {
    let fixture = fixture();
    let client = fixture.client().await;
    let _lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    assert_eq!(client.faults.sent(Operation::Renew), 0);
}

/// A pushed grant that nobody will renew is made whole first: three tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pushed_grant_without_renewal_is_asked_about_three_times() {
    for (refused, granted) in [(2, true), (10, false)] {
        let fixture = fixture();
        let (first, second) = (fixture.client().await, fixture.client().await);
        let name = fixture.name();
        let lease = first.lock(&name).acquire().await.unwrap();
        let waiting = acquire(second.lock(&name).ttl(Duration::from_secs(60)).no_renewal());
        until_waiters(&first, &name, 1).await;
        for _ in 0..refused {
            second.faults.refuse(Operation::Renew);
        }
        lease.release().await.unwrap();
        let taken = within_bound("an answer", waiting).await.unwrap();
        assert_eq!(taken.is_ok(), granted, "{taken:?}");
        assert_eq!(second.faults.sent(Operation::Renew), 3);
    }
}

/// A store that is away while an acquire is undone is asked for as long as that matters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_claim_is_undone_after_an_outage_without_a_storm() {
    let fixture = fixture();
    let (client, other) = (fixture.client().await, fixture.client().await);
    let (name, ttl) = (fixture.name(), Duration::from_secs(60));
    let _gate = client.faults.hold_reply(Operation::Acquire);
    let acquiring = acquire(client.lock(&name).ttl(ttl));
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    for _ in 0..40 {
        client.faults.refuse(Operation::Settle);
    }
    acquiring.abort();
    eventually("it is being undone", async || client.faults.sent(Operation::Settle) > 0).await;
    fixture.pass(Duration::from_secs(5)).await;
    let sent = client.faults.sent(Operation::Settle);
    assert!((3..40).contains(&sent), "{sent} questions in five seconds");
    let free = async || {
        fixture.advance(Duration::from_millis(100)).await;
        other.locks.inspect(&name).await.unwrap().lease().is_none()
    };
    eventually("it is undone after the outage", free).await;
    let asked = client.faults.sent(Operation::Settle);
    assert!((41..50).contains(&asked), "{asked} questions");
}

/// As a batch that was refused for one of them is, and only that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_could_not_be_sent_are_not_sent_one_by_one() {
    const CLAIMS: usize = 8;
    let fixture = fixture();
    let client = fixture.patient_client().await;
    client.faults.limit(64, 1);
    let gate = client.faults.hold_reply(Operation::Acquire);
    let _first = acquire(client.lock(&fixture.name()));
    eventually("one is under way", async || client.faults.sent(Operation::Acquire) == 1).await;
    for _ in 0..2 * CLAIMS {
        client.faults.refuse(Operation::Acquire);
    }
    let mut events = client.locks.events();
    let mut behind = Vec::new();
    for _ in 0..CLAIMS {
        behind.push(acquire(client.lock(&fixture.name())));
        next_event(&mut events, |kind| matches!(kind, EventKind::Asked)).await;
    }
    fixture.settle_down().await;
    gate.send(()).unwrap();
    for acquiring in behind {
        let error = within_bound("an answer", acquiring).await.unwrap().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    }
    assert_eq!(client.faults.sent(Operation::Acquire), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_has_more_claims_than_the_store_takes() {
    let fixture = fixture();
    let client = fixture.patient_client().await;
    client.faults.limit(4, 1);
    let gate = client.faults.hold_reply(Operation::Acquire);
    let _first = acquire(client.lock(&fixture.name()));
    eventually("one is under way", async || client.faults.sent(Operation::Acquire) == 1).await;
    let mut events = client.locks.events();
    let mut behind = Vec::new();
    for _ in 0..12 {
        behind.push(acquire(client.lock(&fixture.name())));
        next_event(&mut events, |kind| matches!(kind, EventKind::Asked)).await;
    }
    fixture.settle_down().await;
    gate.send(()).unwrap();
    for acquiring in behind {
        let _lease = within_bound("the lock", acquiring).await.unwrap().unwrap();
    }
    assert_eq!(client.faults.largest_batch(), 4);
}
