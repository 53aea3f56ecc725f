//! What a queue of waiters costs the store: everyone in it has a client of its own, and the
//! lock goes from hand to hand until all have had it.
//!
//! Time is turned by hand and stands still, so what is counted is what hand-overs cost, not
//! how slow the machine is.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Operation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fixture::{Client, Fixture, StoreUnderTest};

/// A thousand clients of an embedded store need seconds to come, on a busy machine minutes.
const PATIENCE: Duration = Duration::from_secs(300);

const OPERATIONS: [Operation; 7] = [
    Operation::Acquire,
    Operation::Wait,
    Operation::Leave,
    Operation::Settle,
    Operation::Renew,
    Operation::Release,
    Operation::Inspect,
];

/// What it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// How many waited.
    pub waiters: u64,
    /// Requests to the store, from the asking of the first to the release of the last.
    pub requests: u64,
    /// Reads of files by this process from when all were in the queue: an embedded store's own
    /// work. What else runs in the process counts, too.
    pub reads: u64,
}

/// Puts this many clients in the queue for one lock and lets all of them have it once.
pub async fn of_a_queue(store: Arc<dyn StoreUnderTest>, waiters: usize) -> Load {
    let fixture = Fixture::new(store, None);
    let name = fixture.name();
    let first = fixture.client().await;
    let lease = first.lock(&name).acquire().await.expect("a fresh lock is free");
    let mut clients = Vec::new();
    let mut turns = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        let client = fixture.client().await;
        let lock = client.lock(&name).wait(Duration::from_secs(3_600));
        turns.spawn(async move { lock.acquire().await?.release().await });
        clients.push(client);
    }
    let all_wait = async {
        while first.locks.inspect(&name).await.expect("it is there").waiters < waiters {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("all get in the queue");
    let before = reads();
    lease.release().await.expect("it is held");
    let all = async {
        while let Some(turn) = turns.join_next().await {
            turn.expect("no panic").expect("everyone has a turn");
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("nobody starves");
    let reads = reads() - before;
    let requests = clients.iter().map(requests).sum();
    Load { waiters: waiters as u64, requests, reads }
}

fn requests(client: &Client) -> u64 {
    OPERATIONS.iter().map(|operation| client.faults.sent(*operation) as u64).sum()
}

/// System calls of this process that read, so far.
fn reads() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("Linux");
    let line = io.lines().find_map(|line| line.strip_prefix("syscr: "));
    line.and_then(|count| count.parse().ok()).expect("Linux counts them")
}

/// Raises this process's limit of file descriptors as far as it may: a thousand clients of one
/// process need many.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If that is not enough, connecting says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
