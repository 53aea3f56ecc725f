//! Many who wait for one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::backend::redis::RedisStore;
use leasehold::backend::{Backend, Claim, Turn, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Locks, Name};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Redis;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::client::{LONG, acquire, client, granted, server, until_waiters};

/// How often each script command and message ran.
pub(crate) fn counts(server: &Redis) -> HashMap<String, u64> {
    let stats = server.cli(&["info", "commandstats"]).unwrap();
    let counted = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    counted.collect()
}

/// One message per hand-over and no herd: at most three commands for an acquisition.
#[tokio::test]
async fn a_handover_costs_few_commands() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 20;
    let server = server();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&server).await);
    }
    let warm = clients[0].lock("a").ttl(LONG).acquire().await.unwrap();
    warm.release().await.unwrap();
    let before = counts(&server);
    let (last, selves) = (Mutex::new(usize::MAX), AtomicUsize::new(0));
    let contend = |me: usize| {
        let (locks, last, selves) = (clients[me].clone(), &last, &selves);
        async move {
            for _ in 0..ROUNDS {
                let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
                let before = std::mem::replace(&mut *last.lock(), me);
                selves.fetch_add(usize::from(before == me), Ordering::Relaxed);
                lease.release().await.unwrap();
            }
        }
    };
    within_bound("everybody's turns", join_all((0..CLIENTS).map(contend))).await;
    let after = counts(&server);
    let grown = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    let acquisitions = (CLIENTS * ROUNDS) as u64;
    // Claims, releases and heartbeats are all scripts.
    assert!(grown("evalsha") <= 3 * acquisitions, "{} calls", grown("evalsha"));
    assert!(grown("publish") <= acquisitions, "{} messages", grown("publish"));
    // Only whoever comes first, or last, may find itself alone.
    assert!(selves.load(Ordering::Relaxed) <= ROUNDS, "{selves:?} without a turn between");
}

/// FAULTS 22: nobody starves, and everybody is served in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_wait_for_one_lock() {
    const WAITERS: usize = 1000;
    let server = Redis::start(&["--maxclients", "4000"]).unwrap();
    let url: Arc<str> = format!("{}?timeout=60s", server.url()).into();
    let patient = Duration::from_secs(60);
    let holder = leasehold::connect(&*url).request_timeout(patient).await.unwrap();
    let lease = holder.lock("a").ttl(LONG * 10).acquire().await.unwrap();
    let mut waiting = Vec::new();
    let served = Arc::new(AtomicUsize::new(0));
    let doors = Arc::new(Semaphore::new(16));
    for _ in 0..WAITERS {
        let (url, served, doors) = (url.clone(), served.clone(), doors.clone());
        waiting.push(tokio::spawn(async move {
            let door = doors.acquire().await.unwrap();
            let locks = leasehold::connect(&*url).request_timeout(patient).await.unwrap();
            drop(door);
            let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
            served.fetch_add(1, Ordering::Relaxed);
            let token = lease.token();
            lease.release().await.unwrap();
            token
        }));
    }
    let everybody = async {
        while holder.inspect("a").await.unwrap().waiters < WAITERS {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let bound = Duration::from_secs(120);
    tokio::time::timeout(bound, everybody).await.expect("everybody waits");
    assert_eq!(served.load(Ordering::Relaxed), 0);
    lease.release().await.unwrap();
    let turns = tokio::time::timeout(bound, join_all(waiting)).await.expect("everybody's turn");
    let mut tokens: Vec<_> = turns.into_iter().map(|turn| turn.expect("no panic")).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), WAITERS, "every token is another");
}

/// redisson#3004, #6150: those behind a dead waiter are served.
#[tokio::test]
async fn a_dead_waiter_costs_little() {
    let server = server();
    let (holder, dead, last) =
        (client(&server).await, client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let vanished = {
        // Its runtime goes, and with it everything that would leave the queue.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let url = server.url();
        runtime.spawn(async move {
            let locks = leasehold::connect(url).await.unwrap();
            let _lease = locks.lock("a").ttl(LONG).acquire().await;
        });
        runtime
    };
    until_waiters(&holder, "a", 1).await;
    vanished.shutdown_background();
    drop(dead);
    let waiting = acquire(last.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 2).await;
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// The key of the queue of the lock `a`.
pub(crate) fn queue(server: &Redis) -> String {
    server.cli(&["keys", "*leasehold:queue:lock:a"]).unwrap()
}

/// A waiter with a TTL of 300 ms that has not been seen for twice as long, as the server writes it;
/// listening there.
fn missing(server: &Redis, owner: u8, channel: &str) -> String {
    let time = server.cli(&["time"]).unwrap();
    let parts: Vec<u64> = time.lines().map(|part| part.parse().unwrap()).collect();
    let seen = 1000 * parts[0] + parts[1] / 1000 - 600;
    format!("{owner:032x} {seen} 1 300 P:leasehold:wake:{channel} x")
}

/// Many that die together, with a short TTL, are not each granted the lock for a term.
#[tokio::test]
async fn the_dead_of_a_moment_cost_nothing() {
    let server = server();
    let (holder, last) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(last.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    for owner in 1..=5 {
        let dead = missing(&server, owner, "nobody");
        server.cli(&["lpush", &queue(&server), &dead]).unwrap();
    }
    lease.release().await.unwrap();
    let granted_to = server.cli(&["get", "lock:a"]).unwrap();
    let next = granted(waiting).await;
    assert_eq!(granted_to, next.owner().to_string(), "at once, by the release");
    next.release().await.unwrap();
}

/// Who is late with its heartbeats, but has its connection, keeps its place; on that of a replica
/// or of another node of a cluster it only hears that it should ask, and is granted nothing that
/// the next one has.
#[tokio::test]
async fn who_is_late_needs_a_connection_here() {
    let server = server();
    let port = server.port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let synced = async || replica.cli(&["role"]).unwrap().contains("connected");
    eventually("the replica follows", synced).await;
    let locks = client(&server).await;
    for (at, told) in [(&server, "g"), (&replica, "a")] {
        let mut listener = redis::Client::open(at.url()).unwrap().get_connection().unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut subscription = listener.as_pubsub();
        subscription.subscribe("leasehold:wake:late").unwrap();
        let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
        let stand_in = acquire(client(&server).await.lock("a").ttl(LONG));
        until_waiters(&locks, "a", 1).await;
        let late = missing(&server, 7, "late");
        server.cli(&["lpush", &queue(&server), &late]).unwrap();
        lease.release().await.unwrap();
        let first: String = subscription.get_message().unwrap().get_payload().unwrap();
        assert!(first.starts_with(&format!("{told} {:032x}", 7)), "{first}");
        granted(stand_in).await.release().await.unwrap();
    }
}

/// A server that began without a clock wrote short times into the queue.
#[tokio::test]
async fn who_was_seen_in_1970_asks_again() {
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    for seen in ["60000", "12345678901"] {
        let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = acquire(waiter.lock("a").ttl(LONG));
        until_waiters(&holder, "a", 1).await;
        let written = server.cli(&["lindex", &queue(&server), "0"]).unwrap();
        let mut words: Vec<&str> = written.split(' ').collect();
        (words[1], words[2]) = (seen, "7");
        server.cli(&["lset", &queue(&server), "0", &words.join(" ")]).unwrap();
        lease.release().await.unwrap();
        granted(waiting).await.release().await.unwrap();
    }
}

/// A waiter that asks again keeps its one place in the queue; one that leaves has none.
#[tokio::test]
async fn who_asks_again_keeps_its_place() {
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let claim = || {
        let mut claim = Claim::new(Name::new("a").unwrap(), LONG, Arc::new(Holder::this_process()));
        claim.queue = true;
        claim
    };
    let [holder, first, second] = [claim(), claim(), claim()];
    let ask = async |claim: &Claim| {
        let asking = store.clone().acquire(vec![claim.clone()]);
        within_bound("an answer", asking).await.unwrap().remove(0)
    };
    let waiting = || {
        let queue = queue(&server);
        if queue.is_empty() { "0".to_owned() } else { server.cli(&["llen", &queue]).unwrap() }
    };
    let Verdict::Granted(grant) = ask(&holder).await else { panic!("it was free") };
    for claim in [&first, &second, &first, &first] {
        assert!(matches!(ask(claim).await, Verdict::Queued(Some(_))));
    }
    assert_eq!(waiting(), "2");
    store.clone().release(vec![holder.hold(grant.token)]).await.unwrap();
    let turn = within_bound("its turn", store.clone().wait(first.clone())).await.unwrap();
    let Turn::Granted(grant) = turn else { panic!("{turn:?}") };
    assert_eq!(waiting(), "1");
    store.clone().leave(second).await.unwrap();
    assert_eq!(waiting(), "0");
    store.clone().release(vec![first.hold(grant.token)]).await.unwrap();
    assert_eq!(server.cli(&["exists", "lock:a"]).unwrap(), "0");
}

/// Two clients on one store: the second one was shown under the first one's label, and heartbeats
/// changed labels in the queue.
#[tokio::test]
async fn clients_that_share_a_store_keep_their_labels() {
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let first = Locks::on(store.clone()).label("first").await.unwrap();
    let second = Locks::on(store).label("second").await.unwrap();
    let label = async |name: &str| {
        let lease = first.inspect(name).await.unwrap().leases.remove(0);
        lease.held_by.holder.unwrap().label
    };
    let _one = first.lock("one").acquire().await.unwrap();
    let _two = second.lock("two").acquire().await.unwrap();
    assert_eq!((label("one").await, label("two").await), ("first".into(), "second".into()));
    let lease = client(&server).await.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut waiting = Vec::new();
    for (count, locks) in [(1, &first), (2, &second)] {
        waiting.push(acquire(locks.lock("a").ttl(LONG)));
        until_waiters(locks, "a", count).await;
    }
    let waiters = || server.cli(&["lrange", &queue(&server), "0", "-1"]).unwrap();
    let before = waiters();
    let beaten = async || waiters().lines().zip(before.lines()).all(|(now, then)| now != then);
    eventually("both show themselves", beaten).await;
    let labels: Vec<bool> = waiters().lines().map(|waiter| waiter.ends_with(",second")).collect();
    assert_eq!(labels, [false, true]);
    lease.release().await.unwrap();
    for (waiting, name) in waiting.into_iter().zip(["first", "second"]) {
        let lease = granted(waiting).await;
        assert_eq!(label("a").await, name);
        lease.release().await.unwrap();
    }
}
