//! curator#1193, kazoo PR#760: nodes that nobody knows of after a connection was cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{LeaseState, Locks, Token};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};
use leasehold_faults::servers::Zookeeper;
use parking_lot::Mutex;

use crate::scene::{TTL, client, queue, raw, url_at};

const ACQUIRES: usize = 1_000;
const CLIENTS: usize = 4;
const LOCKS: usize = 3;

/// The highest token that was seen, for each lock.
type Fences = Arc<Vec<Mutex<Token>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_acquires_through_cut_connections_leave_no_orphan() {
    let server = Zookeeper::start().unwrap();
    let proxy = Arc::new(Proxy::to(server.addr()).await.unwrap());
    let raw = raw(server.addr()).await;
    let url = url_at(proxy.addr(), "/orphans?session=3s");
    let fences: Fences = Arc::new((0..LOCKS).map(|_| Mutex::new(Token::new(0))).collect());
    let left = Arc::new(AtomicUsize::new(ACQUIRES));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&url).await.0);
    }
    let cutting = {
        let (proxy, left) = (proxy.clone(), left.clone());
        tokio::spawn(async move {
            while left.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(10..60))).await;
                // Done, and nobody is told; or not even done.
                if fastrand::bool() {
                    proxy.swallow_reply(fastrand::u64(1..4));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                proxy.reset();
            }
        })
    };
    let work = clients.iter().map(|locks| {
        tokio::spawn(acquire_and_release(locks.clone(), left.clone(), fences.clone()))
    });
    for worker in work.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    within_bound("the end of the cuts", cutting).await.unwrap();
    proxy.heal();
    // The clients live, and with them their sessions: what is left is nobody's.
    for lock in 0..LOCKS {
        let path = format!("/orphans/lock{lock}");
        let empty = async || queue(&raw, &path).await.is_empty();
        eventually("no node is left", empty).await;
    }
    // And nothing comes late.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for lock in 0..LOCKS {
        assert_eq!(queue(&raw, &format!("/orphans/lock{lock}")).await, Vec::<String>::new());
    }
    drop(clients);
}

async fn acquire_and_release(locks: Locks, left: Arc<AtomicUsize>, fences: Fences) {
    while left.load(Ordering::SeqCst) > 0 {
        let chosen = fastrand::usize(..LOCKS);
        let lock = locks.lock(format!("lock{chosen}")).ttl(TTL).wait(Duration::from_secs(20));
        // Without a connection it may fail: then again.
        let Ok(lease) = lock.acquire().await else { continue };
        {
            let mut highest = fences[chosen].lock();
            // While it is held, nobody else can have come after it.
            if lease.state() == LeaseState::Held {
                assert!(lease.token() > *highest, "{} after {highest:?}", lease.token());
                *highest = lease.token();
            }
        }
        let _ = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        // Its answer may be lost as well; it goes on in the background.
        let _ = lease.release().await;
    }
}

/// Created, and cut before the answer: found by the owner in its name, and adopted.
#[tokio::test]
async fn a_node_whose_creation_got_no_answer_is_adopted() {
    let server = Zookeeper::start().unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let raw = raw(server.addr()).await;
    let (locks, _) = client(&url_at(proxy.addr(), "/lost?session=10s")).await;
    let ttl = Duration::from_secs(10);
    let warm = locks.lock("job").ttl(ttl).acquire().await.unwrap();
    let before = warm.token();
    warm.release().await.unwrap();
    proxy.drop_one_way(Way::Replies);
    let lock = locks.lock("job").ttl(ttl);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    eventually("it is created", async || queue(&raw, "/lost/job").await.len() == 1).await;
    let created = queue(&raw, "/lost/job").await.pop().unwrap();
    proxy.heal();
    proxy.reset();
    let lease = within_bound("the lease", acquiring).await.unwrap().unwrap();
    assert!(lease.token() > before);
    let (_, stat) = raw.get_data(&format!("/lost/job/{created}")).await.unwrap();
    assert_eq!(lease.token().get(), stat.czxid as u64, "the same node");
    assert_eq!(queue(&raw, "/lost/job").await, [created]);
    lease.release().await.unwrap();
    assert!(queue(&raw, "/lost/job").await.is_empty());
}

/// The same for one that was cancelled meanwhile: its node goes.
#[tokio::test]
async fn a_node_whose_acquire_was_cancelled_is_deleted() {
    let server = Zookeeper::start().unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let raw = raw(server.addr()).await;
    let (locks, _) = client(&url_at(proxy.addr(), "/lost?session=10s")).await;
    let ttl = Duration::from_secs(10);
    locks.lock("job").ttl(ttl).acquire().await.unwrap().release().await.unwrap();
    proxy.drop_one_way(Way::Replies);
    let lock = locks.lock("job").ttl(ttl);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    eventually("it is created", async || queue(&raw, "/lost/job").await.len() == 1).await;
    acquiring.abort();
    proxy.heal();
    proxy.reset();
    eventually("it is gone", async || queue(&raw, "/lost/job").await.is_empty()).await;
}

/// Sent on a connection that was given up, and done when nobody expects it any more: the
/// session still lives, so nobody but its client will ever delete the node.
#[tokio::test]
async fn a_node_that_comes_late_on_an_old_connection_is_deleted() {
    let server = Zookeeper::start().unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let raw = raw(server.addr()).await;
    let (locks, _) = client(&url_at(proxy.addr(), "/late?session=10s")).await;
    let ttl = Duration::from_secs(10);
    locks.lock("job").ttl(ttl).acquire().await.unwrap().release().await.unwrap();
    proxy.hold_request_with("__lock__");
    let lock = locks.lock("job").ttl(ttl);
    let acquiring = tokio::spawn(async move {
        loop {
            // The connection is silent for longer than the driver bears, and then another one
            // is used; until then it may fail.
            if let Ok(lease) = lock.acquire().await {
                return lease;
            }
        }
    });
    within_bound("the request", proxy.holds_one()).await;
    let lease = within_bound("a lease by another request", acquiring).await.unwrap();
    proxy.deliver();
    let held = async || queue(&raw, "/late/job").await.len() == 1;
    eventually("only the lease's node is left", held).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(held().await);
    lease.release().await.unwrap();
    eventually("no node is left", async || queue(&raw, "/late/job").await.is_empty()).await;
}
