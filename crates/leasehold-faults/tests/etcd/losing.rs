//! Losing a lease by what happens to it in etcd.

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, LossReason};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};
use leasehold_faults::servers::Etcd;

use crate::scene::{Client, PREFIX};

/// Long enough for renewal to come much later than what is waited for.
const LONG: Duration = Duration::from_secs(120);

fn key_of(cluster: &Etcd, name: &str) -> String {
    cluster.ctl(&["get", "--prefix", "--keys-only", &format!("{PREFIX}/{name}/")]).unwrap()
}

/// Not with the next renewal, which is far away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_session_is_lost_at_once() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let lease = client.locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let second = client.locks.lock("b").ttl(LONG).acquire().await.unwrap();
    let key = key_of(&cluster, "a");
    let id = key.trim_end().rsplit('/').next().unwrap().to_owned();
    cluster.ctl(&["lease", "revoke", &id]).unwrap();
    let loss = within_bound("the loss", lease.lost()).await;
    assert_eq!(loss.reason, LossReason::SessionEnded);
    assert_eq!(within_bound("the other's", second.lost()).await.reason, LossReason::SessionEnded);
    let next = client.locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(next.token() > lease.token(), "on a session of its own");
    assert_eq!(next.verify().await.unwrap(), next.token());
}

/// The lease lives on, but the lock is gone: renewal proves the key as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_lost_although_the_session_lives() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let lease = client.lock("a").acquire().await.unwrap();
    let kept = client.lock("b").acquire().await.unwrap();
    cluster.ctl(&["del", key_of(&cluster, "a").trim_end()]).unwrap();
    let loss = within_bound("the loss", lease.lost()).await;
    assert_eq!(loss.reason, LossReason::Expired);
    assert_eq!(kept.verify().await.unwrap(), kept.token(), "only that one");
    let taken = client.lock("a").acquire().await.unwrap();
    let other = Client::on(&cluster).await;
    cluster.ctl(&["del", key_of(&cluster, "a").trim_end()]).unwrap();
    let _next = other.lock("a").acquire().await.unwrap();
    assert_eq!(within_bound("the loss", taken.lost()).await.reason, LossReason::Taken);
}

/// FAULTS 4: the replies are lost; what was taken is given back long before its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_leaves_no_lock() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let proxy = Proxy::to(cluster.addr(0)).await.unwrap();
    let client = Client::at(&format!("etcd://{}/{PREFIX}", proxy.addr())).await;
    let other = Client::on(&cluster).await;
    // The session is there: the next request is the claim itself.
    client.locks.lock("warm").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    proxy.drop_one_way(Way::Replies);
    let lock = client.locks.lock("a").ttl(LONG);
    let asking = tokio::spawn(async move { lock.try_acquire().await });
    let applied = async || other.locks.inspect("a").await.unwrap().lease().is_some();
    eventually("it is applied", applied).await;
    let error = within_bound("the answer", asking).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    proxy.heal();
    proxy.reset();
    eventually("the lock is free again", async || other.is_free("a").await).await;
}

/// The claim itself is late: it arrives when its caller has given up. The key that it leaves
/// would live as long as the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_claim_leaves_no_lock() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let proxy = Proxy::to(cluster.addr(0)).await.unwrap();
    let client = Client::at(&format!("etcd://{}/{PREFIX}", proxy.addr())).await;
    let other = Client::on(&cluster).await;
    let kept = client.locks.lock("kept").ttl(LONG).acquire().await.unwrap();
    proxy.hold_request_with(format!("{PREFIX}/late/"));
    let error = client.locks.lock("late").ttl(LONG).try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    proxy.holds_one().await;
    proxy.deliver();
    // However often it is asked: it may come only now.
    let key = format!("{PREFIX}/late/");
    let gone = async || cluster.ctl(&["get", "--prefix", "--keys-only", &key]).unwrap().is_empty();
    for _ in 0..3 {
        eventually("the late key is removed", gone).await;
        eventually("the lock can be had", async || other.is_free("late").await).await;
    }
    assert_eq!(kept.state(), LeaseState::Held, "what it holds, it holds");
}

/// A waiter whose watch is cut off hears of the hand-over all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_the_reset_of_its_connection() {
    let cluster = Etcd::start(1, &[]).unwrap();
    let proxy = Proxy::to(cluster.addr(0)).await.unwrap();
    let waiter = Client::at(&format!("etcd://{}/{PREFIX}", proxy.addr())).await;
    let holder = Client::on(&cluster).await;
    let lease = holder.lock("a").acquire().await.unwrap();
    let lock = waiter.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || holder.waiters("a").await == 1).await;
    proxy.reset();
    let token = lease.token();
    lease.release().await.unwrap();
    let next = within_bound("the grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}
