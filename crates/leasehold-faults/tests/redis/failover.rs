//! Masters that change: by order, by death, with and without what they knew.

use leasehold::{LeaseState, Locks};
use leasehold_conformance::fixture::eventually;
use leasehold_faults::servers::{Authority, Redis, RedisCluster, RedisSentinel};
use tokio::time::timeout;

use crate::client::{
    FAIL_OVER, LONG, acquire, after_fail_over, connect, connecting, granted, until_waiters,
};

/// Takes the lock as soon as that is possible again.
async fn taken(locks: &Locks, name: &str) -> leasehold::Lease {
    let lock = async || locks.lock(name).ttl(LONG).try_acquire().await.ok().flatten();
    let waiting = async {
        loop {
            if let Some(lease) = lock().await {
                return lease;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    timeout(FAIL_OVER, waiting).await.expect("the lock can be had again")
}

/// A switch in good order: leases are proved again at the new master, queues go on.
#[tokio::test]
async fn a_switch_by_sentinels_is_followed() {
    let servers = RedisSentinel::start(&[]).unwrap();
    let (holder, waiter) = (connect(servers.url()).await, connect(servers.url()).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    servers.fail_over().unwrap();
    let port = servers.master_port().unwrap();
    let new = servers.servers.iter().find(|server| server.port() == port).unwrap();
    let old = servers.servers.iter().find(|server| server.port() != port).unwrap();
    // For a moment there are two: what the old one still grants is lost, and found out.
    // (A server that becomes a replica ends its connections, that of the question too.)
    let is = |server: &Redis, role: &str| {
        server.cli(&["role"]).is_ok_and(|answer| answer.starts_with(role))
    };
    let switched = async || is(new, "master") && is(old, "slave");
    after_fail_over("there is one master", switched).await;
    // Never assumed: asked.
    let proved = async || lease.verify().await.is_ok();
    after_fail_over("the lease is proved at the new master", proved).await;
    assert_eq!(new.cli(&["get", "lock:a"]).unwrap(), lease.owner().to_string());
    let token = lease.token();
    lease.release().await.unwrap();
    let next = timeout(FAIL_OVER, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(new.cli(&["get", "lock:a"]).unwrap(), next.owner().to_string());
}

/// All of them speak TLS, and the sentinels know us by a user of their own.
#[tokio::test]
async fn a_switch_by_sentinels_is_followed_over_tls() {
    let authority = Authority::new().unwrap();
    let servers = RedisSentinel::start_over_tls(&authority).unwrap();
    servers.set_sentinel_user(&["watcher", "on", ">hush", "allchannels", "+@all"]).unwrap();
    let url = format!("{}&sentinel-user=watcher&sentinel-password=hush", servers.url());
    let (holder, waiter) = (connect(&url).await, connect(&url).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    servers.fail_over().unwrap();
    let [old, new] = &servers.servers;
    let is = |server: &Redis, role: &str| {
        server.cli(&["role"]).is_ok_and(|answer| answer.starts_with(role))
    };
    let switched = async || is(new, "master") && is(old, "slave");
    after_fail_over("there is one master", switched).await;
    let proved = async || lease.verify().await.is_ok();
    after_fail_over("the lease is proved at the new master", proved).await;
    lease.release().await.unwrap();
    let next = timeout(FAIL_OVER, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(new.cli(&["get", "lock:a"]).unwrap(), next.owner().to_string());
}

/// A master whose memory is full refuses, and is still the master: nobody connects again, or proves
/// all leases again, for each refusal. (98 connections and 61 MB in 5 s.)
#[tokio::test]
async fn a_master_that_refuses_is_still_the_master() {
    const REFUSALS: u64 = 30;
    let servers = RedisSentinel::start(&[]).unwrap();
    let master = &servers.servers[0];
    let locks = connect(servers.url()).await;
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let connections = || {
        let stats = master.cli(&["info", "stats"]).unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    master.cli(&["config", "set", "maxmemory", "1"]).unwrap();
    let before = connections();
    for _ in 0..REFUSALS {
        let error = locks.lock("b").try_acquire().await.unwrap_err();
        assert_eq!(*error.kind(), leasehold::ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("memory is full"), "{error}");
    }
    // Those who ask for the count connect as well.
    let made = connections() - before;
    assert!(made < REFUSALS / 3, "{made} connections");
    assert_eq!(lease.verify().await.unwrap(), lease.token());
    master.cli(&["config", "set", "maxmemory", "0"]).unwrap();
    locks.lock("b").acquire().await.unwrap().release().await.unwrap();
}

/// FAULTS 8: the new master never heard of the lease. It is lost, not assumed, and the next
/// token is higher all the same.
#[tokio::test]
async fn a_lease_that_the_new_master_does_not_know_is_lost() {
    let mut servers = RedisSentinel::start(&[]).unwrap();
    let locks = connect(servers.url()).await;
    let before = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let (old, replicated) = (before.token(), before.release().await);
    replicated.unwrap();
    let [master, replica] = &mut servers.servers;
    // The link is cut for good: a stopped replica cannot come back to it.
    replica.process().pause();
    master.cli(&["client", "kill", "type", "replica"]).unwrap();
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(lease.token() > old);
    master.kill();
    replica.process().resume();
    let loss = timeout(FAIL_OVER, lease.lost()).await.expect("the loss is noticed");
    assert!(matches!(lease.state(), LeaseState::Lost(_)), "{loss:?}");
    let next = taken(&locks, "a").await;
    assert!(next.token() > lease.token(), "{} after {}", next.token(), lease.token());
}

/// A master dies while somebody waits: the waiter goes on at the next one.
#[tokio::test]
async fn waiters_survive_the_death_of_a_master() {
    let mut servers = RedisSentinel::start(&[]).unwrap();
    let (holder, waiter) = (connect(servers.url()).await, connect(servers.url()).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    servers.servers[0].kill();
    let proved = async || lease.verify().await.is_ok() || lease.state() != LeaseState::Held;
    after_fail_over("the lease is proved, or lost", proved).await;
    let token = lease.token();
    drop(lease);
    let next = timeout(FAIL_OVER, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token() > token);
}

/// Many locks at once, in all slots: each batch is split, and everything comes back in order.
#[tokio::test]
async fn locks_of_all_slots_travel_together() {
    let cluster = RedisCluster::start(&[]).unwrap();
    let locks = connect(cluster.url()).await;
    let mut names: Vec<_> = (0..100).map(|number| format!("many:{{{number}}}:x{number}")).collect();
    names.sort();
    let taking = names.iter().map(async |name| locks.lock(name).ttl(LONG).acquire().await);
    let leases = futures_util::future::try_join_all(taking).await.unwrap();
    let listed = locks.list("many:").await.unwrap();
    let listed: Vec<_> = listed.iter().map(|info| info.name.to_string()).collect();
    assert_eq!(listed, names);
    for lease in &leases {
        assert_eq!(lease.verify().await.unwrap(), lease.token());
    }
    let giving = leases.into_iter().map(leasehold::Lease::release);
    futures_util::future::try_join_all(giving).await.unwrap();
    assert!(locks.list("many:").await.unwrap().is_empty());
}

/// Resharding: the lock's slot goes to another node, with its lease, its queue and its messages.
#[tokio::test]
async fn a_slot_that_moves_is_followed() {
    let cluster = RedisCluster::start(&[]).unwrap();
    let (holder, waiter) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let mut lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    for _ in 0..3 {
        let waiting = acquire(waiter.lock("a").ttl(LONG));
        until_waiters(&holder, "a", 1).await;
        cluster.move_slot_of("lock:a").unwrap();
        let proved = async || lease.verify().await.is_ok();
        after_fail_over("the lease is proved where it is now", proved).await;
        until_waiters(&holder, "a", 1).await;
        let token = lease.token();
        lease.release().await.unwrap();
        let next = granted(waiting).await;
        assert!(next.token() > token);
        next.release().await.unwrap();
        lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    }
}

/// A master of the cluster dies; its replica takes over.
#[tokio::test]
async fn the_death_of_a_node_is_survived() {
    let mut cluster = RedisCluster::start(&[]).unwrap();
    let (holder, waiter) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let elsewhere = ["b", "c", "d", "e", "f", "g"];
    let place = cluster.place_of_master("lock:a").unwrap();
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    let apart = elsewhere.into_iter().find(|name| {
        cluster.place_of_master(&format!("lock:{name}")).is_ok_and(|other| other != place)
    });
    let other = holder.lock(apart.expect("a lock elsewhere")).ttl(LONG).acquire().await.unwrap();
    cluster.nodes[place].kill();
    let proved = async || lease.verify().await.is_ok() || lease.state() != LeaseState::Held;
    after_fail_over("the lease is proved, or lost", proved).await;
    let token = lease.token();
    drop(lease);
    let next = timeout(FAIL_OVER, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(other.verify().await.unwrap(), other.token(), "the other nodes went on");
}

/// The URL names a node that has left the cluster. It answers that nobody has any slot; the others
/// know better. (33 of 60 clients failed: the first answer counted.)
#[tokio::test]
async fn a_seed_that_left_the_cluster_is_not_believed() {
    let cluster = RedisCluster::start(&[]).unwrap();
    let removed = RedisCluster::lone_node().unwrap();
    assert_eq!(removed.cli(&["cluster", "slots"]).unwrap(), "");
    let url = format!("redis+cluster://{},{}", removed.addr(), cluster.nodes[0].addr());
    for round in 0..20 {
        let locks = connect(&url).await;
        let lease = locks.lock(format!("a{round}")).ttl(LONG).acquire().await.unwrap();
        // This asks the nodes again.
        assert_eq!(locks.list(&format!("a{round}")).await.unwrap().len(), 1);
        lease.release().await.unwrap();
    }
    let error = connecting(format!("redis+cluster://{}", removed.addr())).await.unwrap_err();
    assert!(error.to_string().contains("--cluster check"), "{error}");
}

/// A node hangs: those who wait for locks at other nodes go on showing themselves.
#[tokio::test]
async fn a_node_that_hangs_holds_up_no_heartbeats_elsewhere() {
    let cluster = RedisCluster::start(&["--cluster-require-full-coverage", "no"]).unwrap();
    let holder = connect(cluster.url()).await;
    // Longer than the test: what hangs, hangs.
    let waiter = connect(format!("{}?timeout=60s", cluster.url())).await;
    let place = cluster.place_of_master("lock:a").unwrap();
    let apart = ["b", "c", "d", "e", "f", "g"].into_iter().find(|name| {
        cluster.place_of_master(&format!("lock:{name}")).is_ok_and(|other| other != place)
    });
    let apart = apart.expect("a lock elsewhere");
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for name in ["a", apart] {
        held.push(holder.lock(name).ttl(LONG).acquire().await.unwrap());
        waiting.push(acquire(waiter.lock(name).ttl(LONG)));
        until_waiters(&holder, name, 1).await;
    }
    let node = &cluster.nodes[cluster.place_of_master(&format!("lock:{apart}")).unwrap()];
    let key = node.cli(&["keys", &format!("*leasehold:queue:lock:{apart}")]).unwrap();
    let shown = || node.cli(&["lindex", &key, "0"]).unwrap();
    cluster.nodes[place].process().pause();
    for _ in 0..4 {
        let before = shown();
        eventually("the next heartbeat", async || shown() != before).await;
    }
    cluster.nodes[place].process().resume();
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
