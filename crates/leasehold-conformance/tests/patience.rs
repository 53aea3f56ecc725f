//! Regressions of the end of patience: what it says, and how soon.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, EventKind, Lease, LeaseState, Lock, Operation, Outcome, Result};
use leasehold_conformance::fixture::{Client, Fixture, eventually, next_event, within_bound};
use leasehold_conformance::stores;
use tokio::task::JoinHandle;

/// Shorter than any round trip.
const BRIEF: Duration = Duration::from_millis(1);

fn fixture() -> Fixture {
    Fixture::new(stores::memory(), None)
}

fn acquire(lock: Lock) -> JoinHandle<Result<Lease>> {
    tokio::spawn(async move { lock.acquire().await })
}

/// An acquisition whose patience ended while its claim was under way.
async fn asks_briefly(fixture: &Fixture, client: &Client, name: &str) -> JoinHandle<Result<Lease>> {
    let acquiring = acquire(client.lock(name).wait(BRIEF));
    eventually("it asked", async || client.faults.sent(Operation::Acquire) >= 1).await;
    fixture.advance(BRIEF).await;
    // It is polled at least once after the end of its patience.
    fixture.settle_down().await;
    acquiring
}

/// It was given up, undone, and reported as "the store did not answer within 2000 ms".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_is_taken_although_patience_is_shorter_than_the_round_trip() {
    let fixture = fixture();
    let client = fixture.client().await;
    let answer = client.faults.hold_reply(Operation::Acquire);
    let acquiring = asks_briefly(&fixture, &client, &fixture.name()).await;
    answer.send(()).expect("it waits for the answer to its claim");
    let lease = within_bound("the lock", acquiring).await.unwrap().unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_is_reported_although_patience_is_shorter_than_the_round_trip() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let answer = second.faults.hold_reply(Operation::Acquire);
    let acquiring = asks_briefly(&fixture, &second, &name).await;
    let _ = answer.send(());
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}");
    assert_eq!(first.locks.inspect(&name).await.unwrap().waiters, 0, "it left the queue");
}

/// It named the time-out of a request that nobody had waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_store_is_reported_with_the_time_that_was_waited() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    client.faults.cut();
    let acquiring = asks_briefly(&fixture, &client, &fixture.name()).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("did not answer within 1 ms"), "{error}");
}

/// The wait ended with "held by another", which the store had said long before, and only after
/// two more time-outs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_goes_away_during_the_wait_is_not_reported_as_held() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let acquiring = acquire(second.lock(&name).wait(Duration::from_secs(5)));
    let waits = async || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    second.faults.cut();
    let began = Instant::now();
    fixture.advance(Duration::from_secs(5)).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("5.0 s ago case (pid "), "since when: {error}");
    assert_eq!(error.outcome(), Outcome::Unknown);
}

/// The last thing that it heard was an error; that the lock is held is asked all the same, and
/// the store is not asked for it without a pause meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_ends_during_a_refusal_as_well() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let mut events = second.locks.events();
    second.faults.refuse(Operation::Wait);
    // Shorter than the TTL, for which refusals are borne.
    let patience = fixture.ttl() / 2;
    let acquiring = acquire(second.lock(&name).wait(patience));
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    for _ in 0..1_000 {
        second.faults.refuse(Operation::Acquire);
    }
    let asked = async || {
        fixture.advance(Duration::from_millis(1)).await;
        second.faults.sent(Operation::Acquire) >= 2
    };
    eventually("it claims again", asked).await;
    next_event(&mut events, |kind| matches!(kind, EventKind::Troubled(_))).await;
    let sent = second.faults.sent(Operation::Acquire);
    fixture.advance(patience).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}");
    let more = second.faults.sent(Operation::Acquire) - sent;
    assert!(more <= 1, "{more} claims after the end of patience");
}

/// The store answered that it left the queue: it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_ends_with_held_although_one_question_fails() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let acquiring = acquire(second.lock(&name).wait(fixture.ttl() / 2));
    let waits = async || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    second.faults.refuse(Operation::Inspect);
    fixture.advance(fixture.ttl() / 2).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}");
}

/// Behind a task of its own client it was never in the store's queue: then only that question
/// says whether the lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_ends_in_the_local_queue_with_what_the_store_says() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    let _before = acquire(second.lock(&name));
    let waits = async || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    for refused in [true, false] {
        let mut events = second.locks.events();
        let acquiring = acquire(second.lock(&name).wait(BRIEF));
        next_event(&mut events, |kind| matches!(kind, EventKind::Asked)).await;
        if refused {
            second.faults.refuse(Operation::Inspect);
        }
        fixture.advance(BRIEF).await;
        let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
        match refused {
            true => assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}"),
            false => assert!(matches!(error.kind(), ErrorKind::Held(Some(_))), "{error}"),
        }
    }
}

/// Contract 4: it never reports "held by another" for its own key, which it was granted just as
/// its patience ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_that_ends_with_an_unheard_grant_does_not_name_itself() {
    let fixture = fixture();
    let (first, second) = (fixture.client().await, fixture.impatient_client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let held_by =
        async || first.locks.inspect(&name).await.unwrap().lease().map(|by| by.held_by.clone());
    let before = held_by().await;
    let _unheard = second.faults.hold_reply(Operation::Wait);
    second.faults.lose_request(Operation::Leave);
    let patience = fixture.ttl() / 2;
    let acquiring = acquire(second.lock(&name).wait(patience));
    let waits = async || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    fixture.advance(patience / 2).await;
    lease.release().await.unwrap();
    let granted = async || held_by().await.is_some_and(|by| Some(by) != before);
    eventually("it is granted", granted).await;
    fixture.advance(patience / 2).await;
    let error = within_bound("the end", acquiring).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Held(before), "{error}");
}
