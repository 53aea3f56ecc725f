//! What an operator sees and does.

use std::time::Duration;

use leasehold::{Consistency, ErrorKind, EventKind, Guarantees, Locks, Operation, Refusal};

use crate::fixture::{Fixture, eventually, within_bound};

/// redisson#2116, Medallion#27: who holds it?
pub async fn inspect_tells_who_since_when_and_how_long(fixture: &Fixture) {
    let (holder, waiter) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let free = waiter.locks.inspect(&name).await.unwrap();
    assert!(free.lease().is_none() && free.waiters == 0 && free.forced.is_none());
    let lease = holder.lock(&name).no_renewal().acquire().await.unwrap();
    let lock = waiter.lock(&name);
    let _waiting = tokio::spawn(async move { lock.acquire().await });
    let waits = async || waiter.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("the waiter shows", waits).await;
    fixture.pass(Duration::from_millis(500)).await;
    let info = waiter.locks.inspect(&name).await.unwrap();
    let seen = info.leases.into_iter().next().expect("it is held");
    assert_eq!((seen.owner, seen.token), (Some(lease.owner()), Some(lease.token())));
    let who = seen.held_by.holder.expect("it says who");
    assert_eq!((who.pid, who.label.as_str()), (std::process::id(), "case"));
    let age = fixture.clock().wall().duration_since(seen.held_by.since.unwrap()).unwrap();
    let passed = Duration::from_millis(500);
    assert!(age >= passed && age <= passed + fixture.tolerance(), "{age:?}");
    let remaining = seen.remaining.expect("it has a TTL");
    assert!(remaining <= fixture.ttl() - Duration::from_millis(500), "{remaining:?}");
    let least = fixture.ttl() - passed - Duration::from_millis(100);
    assert!(remaining + fixture.tolerance() >= least, "{remaining:?}");
}

/// ShedLock#184, python-redis-lock#41: list the locks; a prefix is no pattern.
pub async fn list_takes_its_prefix_literally(fixture: &Fixture) {
    let client = fixture.client().await;
    let base = fixture.name();
    let names = [format!("{base}/a%b"), format!("{base}/a_b"), format!("{base}/axb")];
    let mut leases = Vec::new();
    for name in &names {
        leases.push(client.lock(name).acquire().await.unwrap());
    }
    let listed = async |prefix: String| {
        let infos = client.locks.list(&prefix).await.unwrap();
        infos.into_iter().map(|info| info.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(format!("{base}/")).await, names);
    assert_eq!(listed(format!("{base}/a%")).await, names[..1]);
    assert_eq!(listed(format!("{base}/a_")).await, names[1..2]);
    for lease in leases {
        lease.release().await.unwrap();
    }
    assert!(listed(base).await.is_empty(), "what nobody holds is not listed");
}

/// Who, when, why: kept by the store.
pub async fn a_force_release_is_recorded(fixture: &Fixture) {
    let (holder, operator) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = holder.lock(&name).acquire().await.unwrap();
    operator.locks.force_release(&name, "stuck since noon").await.unwrap();
    let record = operator.locks.inspect(&name).await.unwrap().forced.expect("recorded");
    assert_eq!(record.forced.reason, "stuck since noon");
    assert_eq!(record.token, lease.token());
    assert!(record.at <= fixture.clock().wall());
    let next = operator.lock(&name).acquire().await.unwrap();
    assert!(next.token() > lease.token());
}

/// A reason is not optional, and what nobody holds is not released.
pub async fn a_force_release_needs_a_reason_and_a_holder(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    assert_eq!(client.locks.force_release(&name, "nobody there").await.unwrap(), None);
    let lease = client.lock(&name).acquire().await.unwrap();
    let error = client.locks.force_release(&name, " ").await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    lease.release().await.unwrap();
}

/// Everything later hangs on these.
pub async fn events_tell_the_life_of_a_lease(fixture: &Fixture) {
    let client = fixture.client().await;
    let mut events = client.locks.events();
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    let (owner, token) = (lease.owner(), lease.token());
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    let mut told = Vec::new();
    for _ in 0..4 {
        let event = within_bound("an event", events.next()).await.unwrap();
        assert_eq!(event.owner, Some(owner));
        told.push(event.kind);
    }
    assert!(matches!(
        &told[..],
        [
            EventKind::Asked,
            EventKind::Granted { token: granted, .. },
            EventKind::Renewed,
            EventKind::Released { .. }
        ] if *granted == token
    ));
}

/// redsync#164: "cancelled" and "gave up" looked the same.
pub async fn events_tell_why_an_acquisition_ended(fixture: &Fixture) {
    let (holder, client) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = holder.lock(&name).acquire().await.unwrap();
    let mut events = client.locks.events();
    assert!(client.lock(&name).try_acquire().await.unwrap().is_none());
    client.faults.refuse(Operation::Acquire);
    client.lock(&name).try_acquire().await.unwrap_err();
    let lock = client.lock(&name);
    let cancelled = tokio::spawn(async move { lock.acquire().await });
    let waits = async || holder.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    cancelled.abort();
    let mut refusals = Vec::new();
    while refusals.len() < 3 {
        let event = within_bound("an event", events.next()).await.unwrap();
        if let EventKind::Refused { why, .. } = event.kind {
            refusals.push(why);
        }
    }
    assert!(matches!(&refusals[..], [Refusal::Held(_), Refusal::Failed(_), Refusal::Cancelled]));
}

/// Guarantees are data, and a level can be demanded.
pub async fn a_store_that_promises_less_is_refused(fixture: &Fixture) {
    let client = fixture.client().await;
    let promised = client.locks.guarantees().consistency;
    for level in [Consistency::BestEffort, Consistency::Quorum, Consistency::Linearizable] {
        let connected = Locks::on(client.faults.clone()).require(level).await;
        match connected {
            Ok(_) => assert!(promised >= level),
            Err(error) => {
                assert!(promised < level);
                assert_eq!(*error.kind(), ErrorKind::Refused);
            }
        }
    }
    let Guarantees { tokens, store, .. } = client.locks.guarantees();
    assert!(!tokens.is_empty() && !store.is_empty());
}
