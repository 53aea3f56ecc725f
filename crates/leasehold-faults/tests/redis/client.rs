//! Clients of a server, and waiting for what they must see.

use std::time::Duration;

use leasehold::{Connect, Lease, Lock, Locks, Result};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Redis;
use tokio::task::JoinHandle;

/// The TTL of leases that must not end by themselves in a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server without persistence.
pub(crate) fn server() -> Redis {
    Redis::start(&[]).expect("a Redis server starts")
}

/// A client of this server.
pub(crate) async fn client(server: &Redis) -> Locks {
    connect(server.url()).await
}

/// A client of this URL.
pub(crate) async fn connect(url: impl Into<String>) -> Locks {
    within_bound("the connection", connecting(url).into_future()).await.expect("the store opens")
}

/// A client to be, of this URL.
pub(crate) fn connecting(url: impl Into<String>) -> Connect {
    leasehold::connect(url).label("redis test")
}

/// Waits for the lock in a task of its own.
pub(crate) fn acquire(lock: Lock) -> JoinHandle<Result<Lease>> {
    tokio::spawn(async move { lock.acquire().await })
}

/// What an acquisition gives, within the bound.
pub(crate) async fn granted(waiting: JoinHandle<Result<Lease>>) -> Lease {
    within_bound("the grant", waiting).await.expect("no panic").expect("the lock")
}

/// Waits until this many wait for the lock.
pub(crate) async fn until_waiters(locks: &Locks, name: &str, count: usize) {
    let waits = async || locks.inspect(name).await.is_ok_and(|info| info.waiters == count);
    eventually("the right number of waiters", waits).await;
}

/// How long a fail-over may take on a busy machine, with all that follows.
pub(crate) const FAIL_OVER: Duration = Duration::from_secs(60);

/// Waits until `done` says so, for as long as a fail-over may take.
pub(crate) async fn after_fail_over(what: &str, done: impl AsyncFn() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(FAIL_OVER, waiting).await;
    assert!(waited.is_ok(), "{what}: not within {FAIL_OVER:?}");
}
