//! Waiting for a lock that another holds.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{EventKind, Lease, LeaseState, Lock, Operation, Result, Token};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::fixture::{Client, Fixture, eventually, next_event, within_bound};

fn acquire(lock: Lock) -> JoinHandle<Result<Lease>> {
    tokio::spawn(async move { lock.acquire().await })
}

async fn until_waiters(client: &Client, name: &str, count: usize) {
    let waits = async || client.locks.inspect(name).await.unwrap().waiters == count;
    eventually("the right number of waiters", waits).await;
}

async fn granted(waiting: JoinHandle<Result<Lease>>) -> Lease {
    within_bound("the grant", waiting).await.unwrap().unwrap()
}

/// No polling: a release lets the waiter in, with a higher token.
pub async fn a_waiter_gets_the_lock_on_release(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name));
    until_waiters(&first, &name, 1).await;
    let token = lease.token();
    lease.release().await.unwrap();
    // The clock stands still: only the release can have let it in.
    let next = granted(waiting).await;
    assert!(next.token() > token);
    assert_eq!(next.state(), LeaseState::Held);
}

/// First come, first served, between clients.
pub async fn clients_are_served_in_the_order_they_came(fixture: &Fixture) {
    if !fixture.guarantees().await.fair {
        return;
    }
    let holder = fixture.client().await;
    let name = fixture.name();
    let lease = holder.lock(&name).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for place in 0..4 {
        let client = fixture.client().await;
        let (lock, served) = (client.lock(&name), served.clone());
        waiting.push(tokio::spawn(async move {
            let lease = lock.acquire().await.unwrap();
            served.lock().push(place);
            lease.release().await.unwrap();
        }));
        until_waiters(&holder, &name, place + 1).await;
    }
    lease.release().await.unwrap();
    for waiter in waiting {
        within_bound("every waiter's turn", waiter).await.unwrap();
    }
    assert_eq!(*served.lock(), [0, 1, 2, 3]);
}

/// A holder that is cut off is replaced when its lease ends.
pub async fn a_waiter_takes_over_at_expiry(fixture: &Fixture) {
    let (first, second) = (fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name));
    until_waiters(&second, &name, 1).await;
    first.faults.cut();
    let mut events = second.locks.events();
    fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Granted { .. })).await;
    let next = granted(waiting).await;
    assert!(next.token() > lease.token());
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
}

/// redisson#2714: a waiter that went away but kept its place.
pub async fn a_cancelled_waiter_leaves_the_queue(fixture: &Fixture) {
    let (first, second, third) =
        (fixture.client().await, fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let quitter = acquire(second.lock(&name));
    until_waiters(&first, &name, 1).await;
    let waiting = acquire(third.lock(&name));
    until_waiters(&first, &name, 2).await;
    quitter.abort();
    until_waiters(&first, &name, 1).await;
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// The same for one whose patience ran out: the lock is not granted to its ghost.
pub async fn a_waiter_without_patience_leaves_the_queue(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name).wait(Duration::from_millis(200)));
    until_waiters(&first, &name, 1).await;
    fixture.pass(Duration::from_millis(300)).await;
    within_bound("the end of patience", waiting).await.unwrap().unwrap_err();
    assert_eq!(first.locks.inspect(&name).await.unwrap().waiters, 0);
    lease.release().await.unwrap();
    assert!(first.lock(&name).try_acquire().await.unwrap().is_some());
}

/// redisson#3004, #6150: a fair queue stuck behind a dead waiter.
pub async fn a_waiter_that_vanished_does_not_block_the_queue(fixture: &Fixture) {
    let (first, dead, third) =
        (fixture.client().await, fixture.impatient_client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let vanished = acquire(dead.lock(&name));
    until_waiters(&first, &name, 1).await;
    let waiting = acquire(third.lock(&name));
    until_waiters(&first, &name, 2).await;
    // Gone without a word: it neither waits on nor leaves.
    dead.faults.cut();
    vanished.abort();
    lease.release().await.unwrap();
    let mut events = third.locks.events();
    fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Granted { .. })).await;
    granted(waiting).await.release().await.unwrap();
}

/// Tasks of one client queue locally: the store sees one waiter.
pub async fn tasks_of_one_client_are_one_waiter(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let counter = Arc::new(Mutex::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (lock, counter) = (second.lock(&name), counter.clone());
        tasks.push(tokio::spawn(async move {
            let lease = lock.acquire().await.unwrap();
            *counter.lock() += 1;
            lease.release().await.unwrap();
        }));
    }
    until_waiters(&first, &name, 1).await;
    assert_eq!(second.faults.sent(Operation::Acquire), 1, "the others wait in the local queue");
    lease.release().await.unwrap();
    for task in tasks {
        within_bound("every task's turn", task).await.unwrap();
    }
    assert_eq!(*counter.lock(), 8);
}

/// A lock with waiters is not free for those who try.
pub async fn a_newcomer_does_not_overtake(fixture: &Fixture) {
    if !fixture.guarantees().await.fair {
        return;
    }
    let (first, second, third) =
        (fixture.client().await, fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name));
    until_waiters(&first, &name, 1).await;
    lease.release().await.unwrap();
    assert!(third.lock(&name).try_acquire().await.unwrap().is_none());
    granted(waiting).await.release().await.unwrap();
}

/// A grant that was pushed to a waiter may be short; the keeper makes it whole.
pub async fn a_pushed_grant_is_renewed_to_its_whole_term(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let long = Duration::from_secs(60);
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name).ttl(long));
    until_waiters(&first, &name, 1).await;
    let mut events = second.locks.events();
    lease.release().await.unwrap();
    let next = granted(waiting).await;
    // On a session store it may be whole at once: the session is.
    if next.remaining() <= long / 2 {
        fixture.pass_until(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    }
    assert!(next.remaining() > long / 2, "{:?}", next.remaining());
}

/// Without renewal nobody would make it whole later: it is confirmed first.
pub async fn a_pushed_grant_without_renewal_is_whole(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let long = Duration::from_secs(60);
    let lease = first.lock(&name).acquire().await.unwrap();
    let waiting = acquire(second.lock(&name).ttl(long).no_renewal());
    until_waiters(&first, &name, 1).await;
    lease.release().await.unwrap();
    let next = granted(waiting).await;
    assert!(next.remaining() > long / 2, "{:?}", next.remaining());
    let info = first.locks.inspect(&name).await.unwrap();
    assert!(info.lease().unwrap().remaining.unwrap() > long / 2);
}

/// The grant and the cancellation cross: the lock goes on to the next.
pub async fn a_grant_that_meets_a_cancellation_is_passed_on(fixture: &Fixture) {
    let (first, second, third) =
        (fixture.client().await, fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).acquire().await.unwrap();
    let _gate = second.faults.hold_reply(Operation::Wait);
    let mut events = second.locks.events();
    let quitter = acquire(second.lock(&name));
    next_event(&mut events, |kind| matches!(kind, EventKind::Waiting(_))).await;
    until_waiters(&first, &name, 1).await;
    let token: Token = lease.token();
    lease.release().await.unwrap();
    let passed = async || {
        let info = first.locks.inspect(&name).await.unwrap();
        info.lease().is_some_and(|lease| lease.token > Some(token))
    };
    eventually("the grant at the store", passed).await;
    quitter.abort();
    granted(acquire(third.lock(&name))).await.release().await.unwrap();
}
