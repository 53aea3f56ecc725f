//! `wait-replicas`: no path to a lease leaves the replicas out.

use std::error::Error;

use leasehold::{ErrorKind, Locks};
use leasehold_conformance::fixture::eventually;
use leasehold_faults::servers::Redis;

use crate::client::{LONG, acquire, connect, granted, until_waiters};

/// A master, its replica, and a client that wants the replica to have each lease.
async fn replicated() -> (Redis, Redis, Locks) {
    let master = Redis::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
    let port = master.port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let linked = async || master.cli(&["info", "replication"]).unwrap().contains("state=online");
    eventually("the replica is there", linked).await;
    let locks = connect(format!("{}?wait-replicas=1", master.url())).await;
    (master, replica, locks)
}

async fn until_nothing_is_held(locks: &Locks) {
    let free = async || locks.list("").await.is_ok_and(|locks| locks.is_empty());
    eventually("nothing is held, and nobody waits", free).await;
}

/// The WAITs of many tasks stood behind each other on one connection. After two seconds their
/// claims counted as unanswered, and settling adopted all of them without asking a replica.
#[tokio::test]
async fn many_tasks_get_no_lease_while_the_replica_is_stopped() {
    let (_master, replica, locks) = replicated().await;
    replica.process().pause();
    let tasks: Vec<_> =
        (0..6).map(|task| acquire(locks.lock(format!("a{task}")).ttl(LONG))).collect();
    for task in tasks {
        let error = task.await.unwrap().expect_err("no replica has it");
        assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    until_nothing_is_held(&locks).await;
    replica.process().resume();
    let again = async || locks.lock("a0").try_acquire().await.is_ok_and(|lease| lease.is_some());
    eventually("the replica has it", again).await;
}

/// Many at once are confirmed at once.
#[tokio::test]
async fn many_tasks_share_their_confirmations() {
    let (master, _replica, locks) = replicated().await;
    master.cli(&["config", "resetstat"]).unwrap();
    let tasks: Vec<_> =
        (0..64).map(|task| acquire(locks.lock(format!("a{task}")).ttl(LONG))).collect();
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(granted(task).await);
    }
    let stats = master.cli(&["info", "commandstats"]).unwrap();
    let waits = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    let waits: u32 = waits.unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(waits < 32, "{waits} WAITs for {} leases", leases.len());
}

/// A waiter whose turn comes while the replica is stopped gets no lease either.
#[tokio::test]
async fn a_grant_in_the_queue_needs_the_replica_too() {
    let (master, replica, locks) = replicated().await;
    let second = connect(format!("{}?wait-replicas=1", master.url())).await;
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(second.lock("a").ttl(LONG));
    until_waiters(&locks, "a", 1).await;
    replica.process().pause();
    lease.release().await.unwrap();
    let error = waiting.await.unwrap().expect_err("no replica has it");
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("0 of 1 replicas"), "{error}: {cause}");
    until_nothing_is_held(&second).await;
}

/// The connection for WAIT is made after the first grant. When that failed, the error said that
/// nothing was applied, and the lock stayed for its TTL.
#[tokio::test]
async fn a_lease_is_given_back_when_the_replicas_cannot_be_asked() {
    let (master, _replica, locks) = replicated().await;
    // This client and the replica, which is counted, too.
    master.cli(&["config", "set", "maxclients", "2"]).unwrap();
    let error = locks.lock("a").ttl(LONG).try_acquire().await.expect_err("WAIT has no connection");
    assert!(error.to_string().contains("replicas"), "{error}");
    until_nothing_is_held(&locks).await;
}

/// A server that does not know the script yet confirms in the same go.
#[tokio::test]
async fn the_first_lease_on_a_server_is_granted_once() {
    let (master, _replica, locks) = replicated().await;
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let stats = master.cli(&["info", "commandstats"]).unwrap();
    let deleted = stats.lines().any(|line| line.starts_with("cmdstat_del:"));
    assert!(!deleted, "the lease was given back and taken again: {stats}");
    assert_eq!(master.cli(&["get", "lock:a"]).unwrap(), lease.owner().to_string());
}
