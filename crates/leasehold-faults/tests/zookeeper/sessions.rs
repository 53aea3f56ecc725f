//! How many sessions a client has: a few for many TTLs, and none that nobody uses.

use std::time::Duration;

use leasehold_conformance::fixture::eventually;
use leasehold_faults::servers::Zookeeper;
use leasehold_faults::servers::zookeeper::Ensemble;

use crate::scene::client;

/// How many sessions have a connection to this server.
fn sessions(server: &Zookeeper) -> usize {
    let connections = server.word("cons").unwrap();
    connections.lines().filter(|line| line.contains("sid=0x")).count()
}

/// One for each TTL, and 60 of them were all that a server allows to a host.
#[tokio::test]
async fn many_ttls_share_a_few_sessions_that_are_closed_when_idle() {
    let server = Zookeeper::start_with("maxClientCnxns=30\n", &[]).unwrap();
    let (locks, _) = client(&server.url("/many?session=3s")).await;
    let mut leases = Vec::new();
    for number in 0..70 {
        let ttl = Duration::from_millis(4_000 + 511 * number);
        let lease = locks.lock(format!("job{number}")).ttl(ttl).acquire().await.unwrap();
        assert!(lease.remaining() < ttl, "{:?} of {ttl:?}", lease.remaining());
        leases.push(lease);
    }
    let open = sessions(&server);
    assert!(open <= 16, "{open} sessions");
    for lease in leases {
        lease.release().await.unwrap();
    }
    eventually("idle sessions are closed", async || sessions(&server) == 1).await;
    let lock = locks.lock("job7").ttl(Duration::from_secs(7));
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// A follower tells the leader of its clients every half tick: deadlines allow for that, also
/// where the tick is longer than usual and the URL does not say so.
#[tokio::test]
async fn a_long_tick_is_taken_off_the_deadline() {
    let ensemble = Ensemble::start_with(3, "tickTime=6000\nminSessionTimeout=12000\n").unwrap();
    let (locks, _) = client(&ensemble.url("/tick")).await;
    let lease = locks.lock("job").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    // Half a tick, and 2.5 s for the ping before the write.
    let remaining = lease.remaining();
    assert!(remaining < Duration::from_millis(24_500), "{remaining:?}");
    lease.release().await.unwrap();
}

/// The number of this server's last transaction.
fn transactions(server: &Zookeeper) -> u64 {
    let said = server.word("srvr").unwrap();
    let zxid = said.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("a zxid");
    u64::from_str_radix(zxid.trim(), 16).unwrap()
}

/// What is taken off the deadline made every proof look old: a waiter wrote every 50 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_writes_seldom_however_long_the_tick_is() {
    let ensemble = Ensemble::start(3).unwrap();
    // 2 s for the ping before a write and 2 s for the tick: more than a quarter of the TTL.
    let url = ensemble.url("/seldom?session=10s&tick=4s");
    let ttl = Duration::from_secs(10);
    let (holder, _) = client(&url).await;
    let (other, _) = client(&url).await;
    let lease = holder.lock("job").ttl(ttl).acquire().await.unwrap();
    let lock = other.lock("job").ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || other.inspect("job").await.is_ok_and(|i| i.waiters == 1)).await;
    let leader = &ensemble.servers[ensemble.leader().unwrap()];
    let before = transactions(leader);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let writes = transactions(leader) - before;
    assert!(writes <= 10, "{writes} writes in two seconds");
    assert!(!waiting.is_finished());
    lease.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
