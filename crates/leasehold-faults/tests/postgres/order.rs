//! Many clients, many locks at a time, in every order: no deadlock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Claim, Verdict, postgres};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Postgres;

const CLIENTS: usize = 8;
const ROUNDS: usize = 40;
const LOCKS: usize = 24;

/// A batch locks its rows in the order of their names, whatever order it was given in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_batches_do_not_deadlock() {
    let server = Postgres::start(&["deadlock_timeout=50ms"]).unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let store = postgres::open(&server.url(), Clock::boot()).await.unwrap();
        clients.spawn(rounds(store));
    }
    let mut granted = 0;
    while let Some(done) = within_bound("every round", clients.join_next()).await {
        granted += done.unwrap();
    }
    assert!(granted >= ROUNDS, "somebody always gets something: {granted}");
    let deadlocks = server.psql("select sum(deadlocks) from pg_stat_database").unwrap();
    assert_eq!(deadlocks, "0");
}

async fn rounds(store: Arc<dyn Backend>) -> usize {
    let holder = Arc::new(Holder::this_process());
    let mut granted = 0;
    for _ in 0..ROUNDS {
        let mut claims: Vec<Claim> = (0..LOCKS)
            .map(|lock| {
                let name = Name::new(format!("lock-{lock}")).unwrap();
                Claim::new(name, Duration::from_secs(30), holder.clone())
            })
            .collect();
        fastrand::shuffle(&mut claims);
        let verdicts = store.clone().acquire(claims.clone()).await.unwrap();
        let mut holds = Vec::new();
        let mut lost = Vec::new();
        for (claim, verdict) in claims.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Granted(grant) => holds.push(claim.hold(grant.token)),
                _ => lost.push(claim),
            }
        }
        granted += holds.len();
        fastrand::shuffle(&mut holds);
        store.clone().renew(holds.clone()).await.unwrap();
        store.clone().settle(lost).await.unwrap();
        fastrand::shuffle(&mut holds);
        store.clone().release(holds).await.unwrap();
    }
    granted
}
