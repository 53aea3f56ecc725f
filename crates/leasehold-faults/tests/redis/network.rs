//! Requests and replies that are lost or late, on the real way to the server.

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, Operation};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};

use crate::client::{LONG, acquire, client, connecting, granted, server, until_waiters};

/// Patience with an answer, in these tests.
const SOON: Duration = Duration::from_millis(500);

/// The caller gets the lock once; nothing of its first request is left.
#[tokio::test]
async fn a_swallowed_reply_gives_the_lock_once() {
    let server = server();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let url = format!("redis://{}", proxy.addr());
    let locks = connecting(url).request_timeout(SOON).await.unwrap();
    let direct = client(&server).await;
    // The script is known by now, so the next EVALSHA is the claim itself.
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    for round in 0..3 {
        let name = format!("a{round}");
        proxy.swallow_reply_to(&name);
        let lease = within_bound("the lock", locks.lock(&name).ttl(LONG).acquire()).await.unwrap();
        assert_eq!(lease.state(), LeaseState::Held);
        let seen = direct.inspect(&name).await.unwrap();
        assert_eq!(seen.lease().unwrap().owner, Some(lease.owner()));
        assert_eq!(seen.waiters, 0);
        lease.release().await.unwrap();
        assert!(direct.lock(&name).try_acquire().await.unwrap().is_some());
    }
}

/// The request is held back, given up and settled; then it arrives. It takes nothing.
#[tokio::test]
async fn a_request_delivered_after_its_settling_takes_nothing() {
    let server = server();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let url = format!("redis://{}?timeout=300ms", proxy.addr());
    let locks = connecting(url).request_timeout(SOON).await.unwrap();
    let direct = client(&server).await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.hold_request_with("lock:late");
    let lease = within_bound("the lock", locks.lock("late").ttl(LONG).acquire()).await.unwrap();
    let (owner, token) = (lease.owner(), lease.token());
    assert_eq!(direct.inspect("late").await.unwrap().lease().unwrap().owner, Some(owner));
    lease.release().await.unwrap();
    let calls = script_calls(&server);
    proxy.deliver();
    eventually("the late request arrives", async || script_calls(&server) > calls).await;
    let seen = direct.inspect("late").await.unwrap();
    assert!(seen.lease().is_none() && seen.waiters == 0, "{seen:?}");
    let next = direct.lock("late").try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > token);
}

fn script_calls(server: &leasehold_faults::servers::Redis) -> u64 {
    let stats = server.cli(&["info", "commandstats"]).unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let calls = line.split("calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

/// A partition: errors in bounded time, and everything goes on when it heals.
#[tokio::test]
async fn a_partition_is_an_error_in_bounded_time_and_heals() {
    let server = server();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let url = format!("redis://{}?timeout=300ms", proxy.addr());
    let locks = connecting(url).request_timeout(SOON).await.unwrap();
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    for way in [Way::Requests, Way::Replies] {
        proxy.cut(way);
        let error = within_bound("an error", locks.lock("b").try_acquire()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
        proxy.heal();
        let back = async || locks.lock("c").try_acquire().await.is_ok();
        eventually("the client is back", back).await;
        assert_eq!(lease.verify().await.unwrap(), lease.token());
    }
    let direct = client(&server).await;
    let free = async || direct.lock("b").try_acquire().await.unwrap().is_some();
    eventually("what was cut off leaves no lock", free).await;
}

/// The message of a grant is lost with its connection: the next heartbeat tells.
#[tokio::test]
async fn a_grant_whose_message_is_lost_is_learned_of() {
    let server = server();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let holder = client(&server).await;
    let waiter = connecting(format!("redis://{}", proxy.addr())).await.unwrap();
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    proxy.swallow_reply_to("lock:a");
    let beaten = script_calls(&server);
    eventually("its connection is gone", async || script_calls(&server) > beaten + 1).await;
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// Killed by an operator: connections come back, waiters and holders go on.
#[tokio::test]
async fn killed_connections_come_back() {
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    for _ in 0..3 {
        server.cli(&["client", "kill", "type", "normal"]).ok();
        server.cli(&["client", "kill", "type", "pubsub"]).ok();
        let proved = async || lease.verify().await.is_ok();
        eventually("the lease is proved again", proved).await;
    }
    until_waiters(&holder, "a", 1).await;
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// Nobody is there: an error at once, that names the server and no secret.
#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_in_bounded_time() {
    let mut server = server();
    server.kill();
    let url = format!("redis://me:hush@{}", server.addr());
    let error = within_bound("an error", connecting(url).into_future()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.operation(), Some(Operation::Connect));
    let said = format!("{error} {error:?}");
    assert!(said.contains(&server.addr().to_string()) && !said.contains("hush"), "{said}");
}
