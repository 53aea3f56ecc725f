//! Killed clients leave their waiters in the queue, perhaps very many of them.

use std::sync::Arc;

use leasehold::backend::redis::RedisStore;
use leasehold::backend::{Backend, Claim, Hold, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Redis;

use crate::client::{LONG, server};
use crate::waiting::{counts, queue};

/// How many were killed.
const DEAD: usize = 5000;
/// How many waiters one call takes out of queues at most (`LOOKS` in `queue.lua`).
const LOOKS: u64 = 1000;

fn claim() -> Claim {
    claim_of("a")
}

fn claim_of(name: &str) -> Claim {
    let mut claim = Claim::new(Name::new(name).unwrap(), LONG, Arc::new(Holder::this_process()));
    claim.queue = true;
    claim
}

async fn ask(store: &Arc<RedisStore>, claim: &Claim) -> Verdict {
    let asking = store.clone().acquire(vec![claim.clone()]);
    within_bound("an answer", asking).await.unwrap().remove(0)
}

/// How many waiters were taken from the heads of queues so far.
fn popped(server: &Redis) -> u64 {
    counts(server).get("lpop").copied().unwrap_or(0)
}

fn length(server: &Redis, key: &str) -> usize {
    server.cli(&["llen", key]).unwrap().parse().unwrap()
}

/// A lock that is held, and its queue of waiters that were seen last so many seconds ago.
async fn with_dead_waiters(
    server: &Redis,
    store: &Arc<RedisStore>,
    seconds: u64,
) -> (Hold, String) {
    let (holder, first) = (claim(), claim());
    let Verdict::Granted(grant) = ask(store, &holder).await else { panic!("it was free") };
    assert!(matches!(ask(store, &first).await, Verdict::Queued(_)));
    let key = queue(server);
    let script = "local now = redis.call('TIME')[1] \
                  local seen = string.format('%.0f', 1000 * (now - ARGV[2])) \
                  for i = 1, tonumber(ARGV[1]) do \
                  local waiter = '%032x %s 1 60000 P:leasehold:wake:nobody x' \
                  redis.call('RPUSH', KEYS[1], string.format(waiter, i, seen)) end";
    let (count, seconds) = (DEAD.to_string(), seconds.to_string());
    server.cli(&["eval", script, "1", &key, &count, &seconds]).unwrap();
    store.clone().leave(first).await.unwrap();
    assert_eq!(length(server, &key), DEAD);
    (holder.hold(grant.token), key)
}

/// 200,000 of them kept the server from all others for 768 ms at the next release.
#[tokio::test]
async fn a_release_drops_a_queue_of_dead_waiters_at_once() {
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let (hold, key) = with_dead_waiters(&server, &store, 10).await;
    // As their last heartbeats, ten seconds ago, left it.
    server.cli(&["pexpire", &key, "3590000"]).unwrap();
    let before = popped(&server);
    store.clone().release(vec![hold]).await.unwrap();
    let looked_at = popped(&server) - before;
    assert!(looked_at <= LOOKS + 1, "{looked_at}");
    assert_eq!(server.cli(&["exists", &key]).unwrap(), "0", "nobody waits");
    assert!(matches!(ask(&store, &claim()).await, Verdict::Granted(_)), "the lock is free");
}

/// No call looks at more than a part of the queue, and nobody overtakes.
#[tokio::test]
async fn a_waiter_behind_many_dead_ones_gets_its_turn_in_steps() {
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let (hold, key) = with_dead_waiters(&server, &store, 10).await;
    let (waiter, newcomer) = (claim(), claim());
    assert!(matches!(ask(&store, &waiter).await, Verdict::Queued(_)));
    let before = popped(&server);
    store.clone().release(vec![hold]).await.unwrap();
    let looked_at = popped(&server) - before;
    assert!(looked_at <= LOOKS + 1, "{looked_at}");
    assert!(matches!(ask(&store, &newcomer).await, Verdict::Queued(_)), "it comes later");
    let mut tries = claim();
    tries.queue = false;
    assert!(matches!(ask(&store, &tries).await, Verdict::Held(_)), "others wait");
    for _ in 0..=DEAD as u64 / LOOKS {
        let before = popped(&server);
        let verdict = ask(&store, &waiter).await;
        let looked_at = popped(&server) - before;
        assert!(looked_at <= LOOKS, "{looked_at}");
        if let Verdict::Granted(_) = verdict {
            assert_eq!(length(&server, &key), 1, "the newcomer is next");
            return;
        }
    }
    panic!("{} are still in the queue", length(&server, &key));
}

/// Dead waiters do not collect for as long as the lock is held.
#[tokio::test]
async fn newcomers_and_heartbeats_clear_a_long_queue() {
    const NEWCOMERS: usize = 256;
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let (_hold, key) = with_dead_waiters(&server, &store, 60).await;
    for _ in 0..NEWCOMERS {
        assert!(matches!(ask(&store, &claim()).await, Verdict::Queued(_)));
    }
    let left = length(&server, &key);
    assert!(left < DEAD + NEWCOMERS, "newcomers take some out: {left}");
    let waiter = claim();
    assert!(matches!(ask(&store, &waiter).await, Verdict::Queued(_)));
    let left = length(&server, &key);
    let waiting = tokio::spawn(store.clone().wait(waiter));
    eventually("a heartbeat takes some out", async || length(&server, &key) < left).await;
    waiting.abort();
}

/// The queue of one lock uses up what a call looks at: the other locks of that call have their
/// turn.
#[tokio::test]
async fn dead_waiters_of_one_lock_hold_up_no_other_lock_of_the_call() {
    let server = server();
    let store = RedisStore::open(&server.url(), Clock::boot()).await.unwrap();
    let (hold, _line) = with_dead_waiters(&server, &store, 10).await;
    let (holder, waiter) = (claim_of("b"), claim_of("b"));
    let Verdict::Granted(grant) = ask(&store, &holder).await else { panic!("it was free") };
    assert!(matches!(ask(&store, &waiter).await, Verdict::Queued(_)));
    // One that is dead stands before it, so that the part for what is common does not do it.
    let key = server.cli(&["keys", "*leasehold:queue:lock:b"]).unwrap();
    let dead = format!("{:032x} 1000000000000 1 60000 P:leasehold:wake:nobody x", 1);
    server.cli(&["lpush", &key, &dead]).unwrap();
    store.clone().release(vec![hold, holder.hold(grant.token)]).await.unwrap();
    let holds = server.cli(&["get", "lock:b"]).unwrap();
    assert_eq!(holds, waiter.owner.to_string(), "the live waiter has it at once");
}
