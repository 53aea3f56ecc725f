//! Nodes that are gone, or silent.

use leasehold::backend::redlock::{NodeVerdict, NodeVerdicts};
use leasehold::{ErrorKind, LeaseState, Outcome};
use leasehold_conformance::fixture::{eventually, within_bound};

use crate::scene::{DURABLE, LONG, client, lock_keys, nodes};

#[tokio::test]
async fn two_of_five_killed_and_everything_goes_on() {
    let mut five = nodes(5, &[]);
    let (locks, other) = (client(&five).await, client(&five).await);
    let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
    five.nodes[1].kill();
    five.nodes[3].kill();
    let mut last = held.token();
    for _ in 0..20 {
        let lease = within_bound("the lock", locks.lock("a").ttl(LONG).acquire()).await.unwrap();
        assert!(lease.token() > last || last == held.token());
        assert!(other.lock("a").try_acquire().await.unwrap().is_none());
        last = lease.token();
        lease.release().await.unwrap();
    }
    held.verify().await.unwrap();
    assert!(other.lock("held").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    // A client that comes now finds its majority, too.
    let late = client(&five).await;
    assert!(late.lock("held").try_acquire().await.unwrap().is_some());
}

/// A clear error, in bounded time; and nobody has to be restarted afterwards.
#[tokio::test]
async fn three_of_five_killed_is_an_error_and_heals() {
    let mut five = nodes(5, DURABLE);
    let locks = client(&five).await;
    let before = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    for node in 0..3 {
        five.nodes[node].kill();
    }
    let error = within_bound("an error", locks.lock("a").ttl(LONG).acquire()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (&ErrorKind::Unreachable, Outcome::NotApplied));
    let source = std::error::Error::source(&error).expect("what each node said");
    let NodeVerdicts(said) = source.downcast_ref().expect("what each node said");
    let gone = said.iter().filter(|(_, said)| matches!(said, NodeVerdict::Unreachable(_)));
    assert_eq!((said.len(), gone.count()), (5, 3), "{error}");
    for node in 0..3 {
        five.nodes[node].restart().unwrap();
    }
    let back = async || locks.lock("b").try_acquire().await.is_ok();
    eventually("the client is back", back).await;
    let after = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > token);
}

/// redsync#140: nobody waits for a node that is silent once the vote is decided. What
/// arrives there later is undone.
#[tokio::test]
async fn two_of_five_paused_delay_nobody_and_keep_nothing() {
    let five = nodes(5, &[]);
    let locks = client(&five).await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    five.nodes[0].process().pause();
    five.nodes[4].process().pause();
    let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
    for round in 0..50 {
        let lock = locks.lock(format!("a{round}")).ttl(LONG);
        within_bound("the lock", lock.acquire()).await.unwrap().release().await.unwrap();
    }
    five.nodes[0].process().resume();
    five.nodes[4].process().resume();
    let only_held =
        async || five.nodes.iter().all(|node| lock_keys(node).iter().all(|key| key == "lock:held"));
    eventually("what came late is undone", only_held).await;
    assert_eq!(held.state(), LeaseState::Held);
    held.release().await.unwrap();
    let nothing = async || five.nodes.iter().all(|node| lock_keys(node).is_empty());
    eventually("nothing is left", nothing).await;
}
