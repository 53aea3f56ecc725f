//! How often nodes are asked, counted at the nodes; and what is left there.

use std::cell::Cell;

use leasehold_conformance::fixture::{eventually, within_bound};

use crate::scene::{LONG, client, count_of, lock_keys, nodes, scripts_run};

/// At least 99 % in one round trip: a claim and a release at each node.
#[tokio::test]
async fn an_uncontended_acquisition_is_one_round_trip() {
    const PAIRS: u64 = 500;
    let five = nodes(5, &[]);
    let clients = [client(&five).await, client(&five).await];
    let before = scripts_run(&five);
    for pair in 0..PAIRS {
        // By turns, on the same few locks: the other's token is always the last.
        let lock = clients[(pair % 2) as usize].lock(format!("a{}", pair % 7)).ttl(LONG);
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let nothing = async || five.nodes.iter().all(|node| lock_keys(node).is_empty());
    eventually("the last release is everywhere", nothing).await;
    let trips = (scripts_run(&five) - before) as f64 / 5.0 - PAIRS as f64;
    let each = trips / PAIRS as f64;
    assert!((0.99..=1.01).contains(&each), "{each} round trips for each acquisition");
}

/// A guess that is too low costs the second one, and no more.
#[tokio::test]
async fn without_a_conflict_two_round_trips_are_the_most() {
    let five = nodes(5, &[]);
    let locks = client(&five).await;
    // The first time nodes are told the scripts, and what may have been overtaken by that is
    // given back once more.
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    let last = Cell::new(0);
    let quiet = async || last.replace(scripts_run(&five)) == last.get();
    eventually("nothing more is asked", quiet).await;
    let start = last.get();
    let first = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    let ahead = first.token().get() + 600_000_000;
    first.release().await.unwrap();
    let done = async || scripts_run(&five) == start + 10;
    eventually("a claim and a release at each of five nodes", done).await;
    for node in &five.nodes {
        let record = node.cli(&["keys", "*leasehold:record:lock:a"]).unwrap();
        let owner = "0".repeat(32) + ".00000000";
        node.cli(&["set", &record, &format!("{ahead} 1 {owner} - -")]).unwrap();
    }
    let before = scripts_run(&five);
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(lease.token().get(), ahead + 1);
    let asked = async || scripts_run(&five) == before + 10;
    eventually("a claim and a token at each of five nodes", asked).await;
}

/// A node that was told to forget its scripts is told them again, each when it is needed: the
/// release may then arrive before the claim that it is to undo.
#[tokio::test]
async fn no_key_is_left_where_scripts_were_forgotten() {
    let five = nodes(5, &[]);
    let locks = client(&five).await;
    for round in 0..30 {
        for node in &five.nodes[..2] {
            node.cli(&["script", "flush", "sync"]).unwrap();
        }
        let lock = locks.lock(format!("a{round}")).ttl(LONG);
        within_bound("the lock", lock.acquire()).await.unwrap().release().await.unwrap();
    }
    let nothing = async || five.nodes.iter().all(|node| lock_keys(node).is_empty());
    eventually("nothing is left, long before a TTL", nothing).await;
}

/// distributed-lock leaves thousands: many clients, few locks, many who give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_left_on_any_node() {
    let five = nodes(5, &[]);
    let mut running = tokio::task::JoinSet::new();
    for contender in 0..8_u64 {
        let locks = client(&five).await;
        running.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(contender);
            for _ in 0..25 {
                let lock = locks.lock(format!("a{}", rng.u8(0..3))).ttl(LONG);
                let patience = std::time::Duration::from_millis(rng.u64(1..60));
                if let Ok(Ok(lease)) = tokio::time::timeout(patience, lock.acquire()).await {
                    tokio::time::sleep(patience / 20).await;
                    lease.release().await.unwrap();
                }
            }
            locks
        });
    }
    let mut clients = Vec::new();
    while let Some(locks) = within_bound("the contenders", running.join_next()).await {
        clients.push(locks.unwrap());
    }
    let nothing = async || five.nodes.iter().all(|node| lock_keys(node).is_empty());
    eventually("nothing is left, long before a TTL", nothing).await;
    for name in ["a0", "a1", "a2"] {
        let lease = within_bound("the lock", clients[0].lock(name).acquire()).await.unwrap();
        lease.release().await.unwrap();
    }
}

/// A waiter whose connection is gone is not woken in the place of one who hears.
#[tokio::test]
async fn a_release_wakes_somebody_who_hears() {
    let three = nodes(3, &[]);
    let (holder, last) = (client(&three).await, client(&three).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let lock = last.lock("a").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits = async || holder.inspect("a").await.is_ok_and(|info| info.waiters == 1);
    eventually("somebody waits", waits).await;
    let published = || three.nodes.iter().map(|node| count_of(node, "publish", "calls"));
    let before: Vec<_> = published().collect();
    for node in &three.nodes {
        let key = node.cli(&["keys", "*leasehold:line:lock:a"]).unwrap();
        let seconds = node.cli(&["time"]).unwrap().lines().next().unwrap().to_owned();
        // It came long ago, was seen just now, and nobody listens there.
        let dead = format!("1 {seconds}999 leasehold:wake:nobody");
        node.cli(&["hset", &key, &format!("w{:032x}", 7), &dead]).unwrap();
    }
    lease.release().await.unwrap();
    let next = within_bound("the lock", waiting).await.unwrap().unwrap();
    let both = async || published().zip(&before).all(|(now, before)| now >= before + 2);
    eventually("each node tells the dead one, and then the one who hears", both).await;
    next.release().await.unwrap();
}
