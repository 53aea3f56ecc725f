//! Leaders that die, clients that are cut off, sessions that end.

use std::time::Duration;

use leasehold::{EventKind, LeaseState, LossReason};
use leasehold_conformance::fixture::{eventually, next_event, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};
use leasehold_faults::servers::Zookeeper;
use leasehold_faults::servers::zookeeper::Ensemble;

use crate::scene::{TTL, client, queue, raw, until_lost, url_at};

/// A connection that breaks is doubt at once, not at the next renewal: that would come after
/// a third of the TTL, which is later than this test waits.
#[tokio::test]
async fn a_broken_connection_is_doubt_at_once() {
    let mut server = Zookeeper::start().unwrap();
    let (locks, _) = client(&server.url("/doubt")).await;
    let lease = locks.lock("job").ttl(Duration::from_secs(90)).acquire().await.unwrap();
    let mut events = locks.events();
    server.kill();
    next_event(&mut events, |kind| matches!(kind, EventKind::Doubtful(_))).await;
    assert_eq!(lease.state(), LeaseState::Doubtful);
    server.restart().unwrap();
    next_event(&mut events, |kind| matches!(kind, EventKind::Renewed)).await;
    assert_eq!(lease.state(), LeaseState::Held, "the session survived the restart");
    assert_eq!(lease.verify().await.unwrap(), lease.token());
}

/// A client that is cut off knows of its loss before another starts, and starts anew after
/// its session was ended by the server.
#[tokio::test]
async fn a_client_that_is_cut_off_knows_before_the_next_one_starts() {
    let server = Zookeeper::start().unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let raw = raw(server.addr()).await;
    let (cut_off, store) = client(&url_at(proxy.addr(), "/cut?session=3s")).await;
    let (other, _) = client(&server.url("/cut?session=3s")).await;
    let lease = cut_off.lock("job").ttl(TTL).acquire().await.unwrap();
    let mut events = cut_off.events();
    let path = store.check(&lease.hold()).unwrap().path().to_owned();
    let (_, before) = raw.get_data(&path).await.unwrap();
    for way in [Way::Requests, Way::Replies] {
        proxy.drop_one_way(way);
    }
    let lock = other.lock("job").ttl(TTL);
    let next = within_bound("the other's turn", lock.acquire()).await.unwrap();
    assert!(matches!(lease.state(), LeaseState::Lost(_)), "{:?}", lease.state());
    assert!(next.token() > lease.token());
    until_lost(&mut events).await;
    proxy.heal();
    proxy.reset();
    // Another session: what the old one had is not believed.
    let again =
        async || cut_off.lock("job2").ttl(TTL).try_acquire().await.is_ok_and(|l| l.is_some());
    eventually("a new session", again).await;
    let new = cut_off.lock("job3").ttl(TTL).acquire().await.unwrap();
    let path = store.check(&new.hold()).unwrap().path().to_owned();
    let (_, after) = raw.get_data(&path).await.unwrap();
    assert_ne!(after.ephemeral_owner, before.ephemeral_owner);
    lease.release().await.unwrap_err();
    assert_eq!(next.verify().await.unwrap(), next.token());
}

/// A session that the server ended while its client slept: lost on waking, as ended.
#[tokio::test]
async fn a_lease_whose_session_ended_is_lost() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (locks, _) = client(&server.url("/ended?session=3s")).await;
    let (other, _) = client(&server.url("/ended")).await;
    let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    let lock = other.lock("job");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || queue(&raw, "/ended/job").await.len() == 2).await;
    let token = lease.token();
    // This thread is all there is of both clients: nothing is sent, nothing is renewed.
    std::thread::sleep(TTL * 2);
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
    lease.verify().await.unwrap_err();
    let next = within_bound("the waiter's turn", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// The leader dies: nobody gets the lock twice, and it can be had again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_no_lock_and_no_order() {
    let mut ensemble = Ensemble::start(3).unwrap();
    let ttl = Duration::from_secs(8);
    let url = ensemble.url("/leader?session=8s&tick=200ms");
    let (holder, _) = client(&url).await;
    let (other, _) = client(&url).await;
    let lease = holder.lock("job").ttl(ttl).acquire().await.unwrap();
    let mut last = lease.token();
    let lock = other.lock("job").ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || other.inspect("job").await.is_ok_and(|i| i.waiters == 1)).await;
    let leader = ensemble.leader().unwrap();
    ensemble.servers[leader].kill();
    ensemble.wait_until_all_serve().unwrap();
    // Held through it all, or lost; but never two.
    if lease.verify().await.is_ok() {
        assert!(!waiting.is_finished() || lease.state() != LeaseState::Held);
    }
    let _ = lease.release().await;
    let limit = Duration::from_secs(60);
    let next = tokio::time::timeout(limit, waiting).await.expect("a turn").unwrap().unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
    last = next.token();
    next.release().await.unwrap();
    for client in [&holder, &other] {
        let lock = client.lock("job").ttl(ttl);
        let lease = tokio::time::timeout(limit, lock.acquire()).await.expect("a turn").unwrap();
        assert!(lease.token() > last);
        last = lease.token();
        lease.release().await.unwrap();
    }
}

/// A holder whose server is the leader that stopped: the others elect another, which ends
/// its session. It must have known by then, whatever its own server would say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_behind_a_stopped_leader_knows_before_the_next_one_starts() {
    let ensemble = Ensemble::start(3).unwrap();
    let leader = ensemble.leader().unwrap();
    let stopped = &ensemble.servers[leader];
    let (holder, _) = client(&stopped.url("/stopped?session=3s&tick=200ms")).await;
    let follower = &ensemble.servers[(leader + 1) % 3];
    let (other, _) = client(&follower.url("/stopped?session=8s&tick=200ms")).await;
    let lease = holder.lock("job").ttl(TTL).acquire().await.unwrap();
    let token = lease.token();
    stopped.process().pause();
    let acquired = async {
        loop {
            let lock = other.lock("job").ttl(Duration::from_secs(8));
            // There is no leader for a while.
            if let Ok(lease) = lock.acquire().await {
                return lease;
            }
        }
    };
    let next = tokio::time::timeout(Duration::from_secs(60), acquired).await.expect("a turn");
    assert!(matches!(lease.state(), LeaseState::Lost(_)), "{:?}", lease.state());
    assert!(next.token() > token);
    stopped.process().resume();
    lease.release().await.unwrap_err();
    assert_eq!(next.verify().await.unwrap(), next.token());
    assert_eq!(next.state(), LeaseState::Held);
}

/// An operator deletes the node by hand: the next renewal tells.
#[tokio::test]
async fn a_node_that_was_deleted_by_hand_is_a_lost_lease() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (locks, store) = client(&server.url("/hand?session=3s")).await;
    let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    let mut events = locks.events();
    raw.delete(store.check(&lease.hold()).unwrap().path(), None).await.unwrap();
    until_lost(&mut events).await;
    let LeaseState::Lost(loss) = lease.state() else { panic!("{lease:?}") };
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(locks.lock("job").ttl(TTL).try_acquire().await.unwrap().is_some());
}
