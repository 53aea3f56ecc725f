//! Taking a lock.

use std::time::Duration;

use leasehold::backend::{Claim, Verdict};
use leasehold::{ErrorKind, Holder, LeaseState, LossReason, Name};

use crate::fixture::{Fixture, eventually, within_bound};

/// A lock is at most one client's, and the others are told who has it.
pub async fn a_free_lock_is_granted_and_excludes_others(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).try_acquire().await.unwrap().expect("it is free");
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.name().as_str(), name);
    assert!(second.lock(&name).try_acquire().await.unwrap().is_none());
    assert!(first.lock(&name).try_acquire().await.unwrap().is_none(), "not re-entrant");
}

/// Release frees the lock at once, for everybody.
pub async fn a_released_lock_can_be_taken_again(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    for client in [&first, &second, &first] {
        let lease = client.lock(&name).try_acquire().await.unwrap().expect("it is free");
        lease.release().await.unwrap();
    }
}

/// Names are locks of their own, also where one is the beginning of the other.
pub async fn distinct_names_do_not_exclude_each_other(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name();
    let names = [name.clone(), format!("{name}:x"), format!("{name}/x"), format!("{{{name}}}")];
    let mut leases = Vec::new();
    for name in &names {
        leases.push(client.lock(name).try_acquire().await.unwrap().expect("it is free"));
    }
    assert_eq!(leases.len(), names.len());
}

/// Running out of patience is an error that says who holds the lock.
pub async fn patience_ends_with_who_holds_it(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    // Whatever its store has to open first is not for its patience.
    assert!(second.lock(&name).try_acquire().await.unwrap().is_none());
    let lock = second.lock(&name).wait(Duration::from_millis(300));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits =
        async || waiting.is_finished() || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    fixture.pass(Duration::from_millis(400)).await;
    let error = within_bound("the end of patience", waiting).await.unwrap().unwrap_err();
    let ErrorKind::Held(Some(by)) = error.kind() else { panic!("{error:?}") };
    let holder = by.holder.as_ref().expect("it says who");
    assert_eq!((holder.pid, holder.label.as_str()), (std::process::id(), "case"));
    assert!(error.to_string().contains(&name), "{error}");
}

/// python-redis-lock: time-outs cut to whole seconds, so that 0.5 s became "for ever".
pub async fn patience_below_a_second_is_kept(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let _lease = first.lock(&name).acquire().await.unwrap();
    // Whatever its store has to open first is not for its patience.
    assert!(second.lock(&name).try_acquire().await.unwrap().is_none());
    let patience = Duration::from_millis(500);
    let (lock, asked) = (second.lock(&name).wait(patience), fixture.clock().now());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits =
        async || waiting.is_finished() || first.locks.inspect(&name).await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    fixture.pass(Duration::from_millis(400)).await;
    // On a busy machine more may have passed.
    let ended = waiting.is_finished();
    let passed = asked.until(fixture.clock().now());
    assert!(!ended || passed >= patience, "it waits for half a second, not {passed:?}");
    fixture.pass(Duration::from_millis(200)).await;
    within_bound("the end of patience", waiting).await.unwrap().unwrap_err();
}

/// A holder that is silent for its TTL blocks nobody for ever.
pub async fn an_expired_lock_goes_to_another(fixture: &Fixture) {
    let (first, second) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let lease = first.lock(&name).no_renewal().acquire().await.unwrap();
    fixture.pass_ttl().await;
    let next = second.lock(&name).try_acquire().await.unwrap().expect("it has expired");
    assert!(next.token() > lease.token());
    assert!(matches!(lease.state(), LeaseState::Lost(loss) if loss.reason == LossReason::Expired));
}

/// A name or a term that cannot work is refused before anything is sent.
pub async fn what_no_store_can_keep_is_refused(fixture: &Fixture) {
    let client = fixture.client().await;
    let long = "x".repeat(256);
    for name in ["", "a\nb", long.as_str()] {
        let error = client.lock(name).try_acquire().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{name:?}");
    }
    for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let error = client.lock("x").ttl(ttl).acquire().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{ttl:?}");
    }
    assert_eq!(client.faults.sent(leasehold::Operation::Acquire), 0);
}

/// sqlx#4198, redis-py#3847: a cancelled acquire that leaks its lock.
pub async fn a_cancelled_acquire_leaves_no_lock(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    // Applied, and dropped before the answer is seen.
    let _gate = client.faults.hold_reply(leasehold::Operation::Acquire);
    let lock = client.lock(&name);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let applied = async || other.locks.inspect(&name).await.unwrap().lease().is_some();
    eventually("the acquire is applied", applied).await;
    acquiring.abort();
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("the lock is free again", free).await;
}

/// redis-py with client retries: a re-sent `SET NX` finds its own key and reports
/// "held by another".
pub async fn the_same_owner_gets_the_same_grant_again(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = Name::new(fixture.name()).unwrap();
    let claim = Claim::new(name, fixture.ttl(), std::sync::Arc::new(Holder::this_process()));
    let store = client.store.clone();
    let first = store.clone().acquire(vec![claim.clone()]).await.unwrap();
    let second = store.acquire(vec![claim]).await.unwrap();
    let (Verdict::Granted(first), Verdict::Granted(second)) = (&first[0], &second[0]) else {
        panic!("{first:?} {second:?}")
    };
    assert_eq!(first.token, second.token);
}
