//! What is in ZooKeeper while a lock is held, and the check for one's own transactions.

use leasehold::{EventKind, LeaseState, LossReason};
use leasehold_conformance::fixture::next_event;
use leasehold_faults::servers::Zookeeper;
use std::time::Duration;
use zookeeper_client::{Acls, CreateMode, Error, MultiWriteError};

use crate::scene::{TTL, client, queue, raw, until_lost};

/// Tokens are transactions, also of claims that travelled together: before 3.8.2 a `multi`
/// does not tell (ZOOKEEPER-4026, -4667).
#[tokio::test]
async fn a_token_is_the_transaction_that_created_the_node() {
    let server = Zookeeper::start().unwrap();
    let (locks, _) = client(&server.url("/tokens?session=3s")).await;
    let raw = raw(server.addr()).await;
    let names: Vec<_> = (0..40).map(|number| format!("lock{number}")).collect();
    let asking = names.iter().map(|name| {
        let lock = locks.lock(name).ttl(TTL);
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    });
    let mut leases = Vec::new();
    for lease in asking.collect::<Vec<_>>() {
        leases.push(lease.await.unwrap());
    }
    let mut transactions = Vec::new();
    for lease in &leases {
        let lock = format!("/tokens/{}", lease.name());
        let children = queue(&raw, &lock).await;
        assert_eq!(children.len(), 1);
        let (_, stat) = raw.get_data(&format!("{lock}/{}", children[0])).await.unwrap();
        assert_eq!(lease.token().get(), stat.czxid as u64);
        transactions.push(stat.czxid);
    }
    transactions.sort_unstable();
    transactions.dedup();
    assert!(transactions.len() < leases.len(), "none of them travelled together");
}

/// The user's own `multi` fails once the lease is gone.
#[tokio::test]
async fn a_check_fails_the_transactions_of_a_lost_lease() {
    let server = Zookeeper::start().unwrap();
    let (locks, store) = client(&server.url("/checks?session=3s")).await;
    let raw = raw(server.addr()).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create("/state", b"0", &options).await.unwrap();
    let lease = locks.lock("state").ttl(TTL).acquire().await.unwrap();
    let check = store.check(&lease.hold()).unwrap();
    let write = async |data: &[u8]| {
        let mut writer = raw.new_multi_writer();
        check.add_to(&mut writer).unwrap();
        writer.add_set_data("/state", data, None).unwrap();
        writer.commit().await.map(drop)
    };
    write(b"1").await.unwrap();
    lease.renew().await.unwrap();
    write(b"2").await.unwrap();
    locks.force_release("state", "for the test").await.unwrap();
    let refused = write(b"3").await.unwrap_err();
    assert_eq!(refused, MultiWriteError::OperationFailed { index: 0, source: Error::NoNode });
    assert_eq!(raw.get_data("/state").await.unwrap().0, b"2");
    let mut events = locks.events();
    if !matches!(lease.state(), LeaseState::Lost(_)) {
        until_lost(&mut events).await;
    }
    store.check(&lease.hold()).unwrap_err();
}

/// The holder hears of a force-release by its own watch: its next renewal would be too late
/// for this test.
#[tokio::test]
async fn a_forced_holder_hears_of_it_at_once() {
    let server = Zookeeper::start().unwrap();
    let (holder, _) = client(&server.url("/forced")).await;
    let (operator, _) = client(&server.url("/forced")).await;
    let long = Duration::from_secs(90);
    let lease = holder.lock("job").ttl(long).acquire().await.unwrap();
    let mut events = holder.events();
    let token = operator.force_release("job", "it hangs").await.unwrap();
    assert_eq!(token, Some(lease.token()));
    let lost = next_event(&mut events, |kind| matches!(kind, EventKind::Lost(_))).await;
    let EventKind::Lost(loss) = lost.kind else { unreachable!() };
    assert!(matches!(&loss.reason, LossReason::Forced(forced) if forced.reason == "it hangs"));
}

/// Parents stay, also when a container would go: a path that somebody removed is made again.
#[tokio::test]
async fn a_lock_whose_node_was_removed_is_made_again() {
    let server = Zookeeper::start().unwrap();
    let (locks, _) = client(&server.url("/deep/er/root?session=3s&parents=container")).await;
    let raw = raw(server.addr()).await;
    for _ in 0..2 {
        let lease = locks.lock("a/b").ttl(TTL).acquire().await.unwrap();
        assert_eq!(queue(&raw, "/deep/er/root/a%2Fb").await.len(), 1);
        lease.release().await.unwrap();
        raw.delete("/deep/er/root/a%2Fb", None).await.unwrap();
        raw.delete("/deep/er/root", None).await.unwrap();
    }
}
