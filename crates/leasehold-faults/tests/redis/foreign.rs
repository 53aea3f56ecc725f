//! Foreign clients on the same key, as `redis-cli` plays them.

use std::time::Duration;

use leasehold_conformance::fixture::within_bound;

use crate::client::{acquire, client, granted, server, until_waiters};

/// A hand-written `SET NX PX` excludes us, is listed as foreign, and is followed.
#[tokio::test]
async fn a_hand_written_lock_excludes_us_and_is_followed() {
    let server = server();
    let locks = client(&server).await;
    let set = ["set", "lock:a", "somebody", "nx", "px", "60000"];
    assert_eq!(server.cli(&set).unwrap(), "OK");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let infos = locks.list("").await.unwrap();
    let lease = infos[0].lease().expect("it is held");
    assert!(lease.owner.is_none() && lease.token.is_none() && lease.held_by.holder.is_none());
    assert!(lease.remaining.unwrap() > Duration::from_secs(30) && !lease.held_by.never_expires);
    let waiting = acquire(locks.lock("a"));
    until_waiters(&locks, "a", 1).await;
    // It tells nobody: a heartbeat finds out.
    assert_eq!(server.cli(&["del", "lock:a"]).unwrap(), "1");
    let lease = granted(waiting).await;
    assert_eq!(server.cli(&set).unwrap(), "", "ours excludes it");
    lease.release().await.unwrap();
    assert_eq!(server.cli(&set).unwrap(), "OK");
}

/// A key without an expiry is a lock for ever, until somebody deletes it.
#[tokio::test]
async fn a_foreign_lock_without_an_end_can_be_forced() {
    let server = server();
    let locks = client(&server).await;
    server.cli(&["set", "lock:a", "somebody"]).unwrap();
    let lease = locks.inspect("a").await.unwrap().leases.remove(0);
    assert!(lease.remaining.is_none() && lease.held_by.never_expires, "{lease:?}");
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        let error = locks.lock("a").wait(wait).acquire().await.unwrap_err();
        assert!(error.to_string().contains("(never expires; release --force)"), "{error}");
    }
    let waiting = acquire(locks.lock("a"));
    until_waiters(&locks, "a", 1).await;
    assert!(locks.force_release("a", "abandoned").await.unwrap().is_some());
    granted(waiting).await.release().await.unwrap();
}

/// Redisson keeps a hash: a holder like any other, not an error.
#[tokio::test]
async fn a_key_of_another_type_is_a_foreign_holder() {
    let server = server();
    let locks = client(&server).await;
    let lease = locks.lock("a").acquire().await.unwrap();
    server.cli(&["del", "lock:a"]).unwrap();
    server.cli(&["hset", "lock:a", "uuid:1", "1"]).unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    lease.renew().await.expect_err("it is another's");
    lease.release().await.expect_err("it is another's");
    assert_eq!(server.cli(&["type", "lock:a"]).unwrap(), "hash", "we left it alone");
    let info = locks.inspect("a").await.unwrap();
    assert!(info.lease().unwrap().owner.is_none());
    let waiting = acquire(locks.lock("a"));
    until_waiters(&locks, "a", 1).await;
    server.cli(&["del", "lock:a"]).unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// A foreign client takes our key away: the lease is lost at its next proof.
#[tokio::test]
async fn a_lease_that_a_foreign_client_took_is_lost() {
    let server = server();
    let locks = client(&server).await;
    let lease = locks.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    server.cli(&["set", "lock:a", "thief"]).unwrap();
    let loss = within_bound("the loss", lease.lost()).await;
    assert_eq!(loss.reason, leasehold::LossReason::Taken);
    assert_eq!(server.cli(&["get", "lock:a"]).unwrap(), "thief");
}
