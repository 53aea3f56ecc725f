//! Many who wait for one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::backend::redis::RedisStore;
use leasehold::backend::{Backend, Claim, Turn, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_testkit::servers::Redis;
use leasehold_testkit::world::{eventually, within_bound};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::client::{LONG, acquire, client, granted, server, until_waiters};

/// How often each script command and message ran.
fn counts(server: &Redis) -> HashMap<String, u64> {
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

/// A client that waits for the lock `a`, and then is gone without a word: its runtime ends, and
/// with it everything that would leave the line. The server knows that its connection has ended.
async fn dies_in_line(server: &Redis, looks: &leasehold::Locks) {
    let listeners = || {
        let channels = server.cli(&["pubsub", "channels", "leasehold:wake:*"]).unwrap();
        channels.lines().count()
    };
    let before = listeners();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let url = server.url();
    runtime.spawn(async move {
        let locks = leasehold::connect(url).await.unwrap();
        let _lease = locks.lock("a").ttl(LONG).acquire().await;
    });
    until_waiters(looks, "a", 1).await;
    runtime.shutdown_background();
    eventually("its connection ends", async || listeners() == before).await;
}

/// redisson#3004, #6150: those behind a dead waiter are served; not even a short grant is lost
/// on one whose connection is gone.
#[tokio::test]
async fn a_dead_waiter_costs_nothing() {
    let server = server();
    let (holder, last) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    dies_in_line(&server, &holder).await;
    let waiting = acquire(last.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 2).await;
    lease.release().await.unwrap();
    let granted_to = server.cli(&["get", "lock:a"]).unwrap();
    let next = granted(waiting).await;
    assert_eq!(granted_to, next.owner().to_string(), "at once, by the release");
    next.release().await.unwrap();
}

/// If nobody else waits, whoever comes takes it.
#[tokio::test]
async fn a_dead_waiter_alone_keeps_nobody_out() {
    let server = server();
    let (holder, newcomer) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    dies_in_line(&server, &holder).await;
    lease.release().await.unwrap();
    assert_eq!(server.cli(&["exists", "lock:a"]).unwrap(), "0");
    let taken = newcomer.lock("a").ttl(LONG).try_acquire().await.unwrap();
    taken.expect("it is free").release().await.unwrap();
}

/// The key of the line of the lock `a`.
fn queue(server: &Redis) -> String {
    server.cli(&["keys", "*leasehold:queue:lock:a"]).unwrap()
}

/// A message travels further than the server can count: to replicas, and to other nodes of a
/// cluster. Who hears it there and has no connection here is told to ask, and granted nothing:
/// the lock is the next one's.
#[tokio::test]
async fn who_listens_elsewhere_is_not_granted_the_lock() {
    let server = server();
    let port = server.port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let synced = async || replica.cli(&["role"]).unwrap().contains("connected");
    eventually("the replica follows", synced).await;
    let mut ears = redis::Client::open(replica.url()).unwrap().get_connection().unwrap();
    ears.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut ears = ears.as_pubsub();
    ears.subscribe("leasehold:wake:elsewhere").unwrap();
    let (holder, last) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(last.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    let seconds = server.cli(&["time"]).unwrap().lines().next().unwrap().to_owned();
    let before_it = format!("{:032x} {seconds}000 1 60000 P:leasehold:wake:elsewhere x", 7);
    server.cli(&["lpush", &queue(&server), &before_it]).unwrap();
    lease.release().await.unwrap();
    let next = granted(waiting).await;
    assert_eq!(server.cli(&["get", "lock:a"]).unwrap(), next.owner().to_string());
    let told: String = ears.get_message().unwrap().get_payload().unwrap();
    assert_eq!(told, format!("a {:032x}", 7), "ask again, and nothing before that");
    next.release().await.unwrap();
}

/// A server that began without a clock wrote short times into the line.
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

/// Whoever asks again is in line once, and where it was; whoever leaves is not.
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
