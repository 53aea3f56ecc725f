//! Claims, renewals and releases that are in flight together travel together.

use leasehold::{EventKind, Lease, Operation};

use crate::fixture::{Client, Fixture, eventually, next_event, within_bound};

/// Sends claims for these names while one request is under way, then lets go.
async fn all_at_once(fixture: &Fixture, client: &Client, names: Vec<String>) -> Vec<Option<Lease>> {
    client.faults.limit(64, 1);
    let gate = client.faults.hold_reply(Operation::Acquire);
    let first = client.lock(&fixture.name());
    let first = tokio::spawn(async move { first.try_acquire().await });
    eventually("one is under way", async || client.faults.sent(Operation::Acquire) == 1).await;
    let mut events = client.locks.events();
    let mut tasks = Vec::new();
    for name in names {
        let lock = client.lock(&name);
        tasks.push(tokio::spawn(async move { lock.try_acquire().await.unwrap() }));
        next_event(&mut events, |kind| matches!(kind, EventKind::Asked)).await;
    }
    tokio::task::yield_now().await;
    gate.send(()).unwrap();
    within_bound("the first", first).await.unwrap().unwrap();
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(within_bound("an answer", task).await.unwrap());
    }
    leases
}

/// Group commit for locks.
pub async fn claims_in_flight_travel_together(fixture: &Fixture) {
    let client = fixture.client().await;
    let names = (0..32).map(|_| fixture.name()).collect();
    let leases = all_at_once(fixture, &client, names).await;
    assert!(leases.iter().all(Option::is_some));
    // The last ones may not have been queued yet when the gate opened.
    assert!(client.faults.largest_batch() >= 16, "{}", client.faults.largest_batch());
    assert!(client.faults.sent(Operation::Acquire) <= 8);
}

/// Two claims on one lock in one batch would share a revision, or reject it whole.
pub async fn one_lock_is_claimed_once_in_a_batch(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let leases = all_at_once(fixture, &client, vec![name; 8]).await;
    assert_eq!(leases.iter().flatten().count(), 1);
    assert!(!client.faults.saw_same_name_in_a_batch());
}

/// etcd: one unknown lease fails a whole batch. The others must not suffer.
pub async fn a_batch_that_fails_is_sent_one_by_one(fixture: &Fixture) {
    let client = fixture.client().await;
    client.faults.fail_batches();
    let names = (0..8).map(|_| fixture.name()).collect();
    let leases = all_at_once(fixture, &client, names).await;
    assert!(leases.iter().all(Option::is_some));
}

/// One keeper, few requests for many leases.
pub async fn renewals_travel_together(fixture: &Fixture) {
    let client = fixture.client().await;
    // All at once: on a busy machine one after the other would be due one after the other.
    let mut asking = Vec::new();
    for _ in 0..100 {
        let lock = client.lock(&fixture.name());
        asking.push(tokio::spawn(async move { lock.acquire().await }));
    }
    let mut leases = Vec::new();
    for lease in asking {
        leases.push(within_bound("a lease", lease).await.unwrap().unwrap());
    }
    let mut events = client.locks.events();
    for _ in 0..100 {
        fixture.pass_until_renewed(&mut events).await;
    }
    assert!(client.faults.sent(Operation::Renew) <= 40, "{}", client.faults.sent(Operation::Renew));
}
