//! Row 22: a thousand waiters on one lock. Nobody starves, and nobody is woken in vain: what
//! a hand-over costs does not grow with the queue.

use std::sync::Arc;

use leasehold_conformance::fixture::StoreUnderTest;
use leasehold_conformance::load::{Load, of_a_queue, raise_descriptor_limit};
use leasehold_conformance::stores;

/// To ask, to wait, to be renewed to the full TTL, to release; and some of it once more.
const REQUESTS: u64 = 8;

async fn loads(store: fn() -> Arc<dyn StoreUnderTest>) -> (Load, Load) {
    raise_descriptor_limit();
    let short = of_a_queue(store(), 50).await;
    let long = of_a_queue(store(), 1_000).await;
    for load in [short, long] {
        assert!(load.requests <= REQUESTS * load.waiters, "{load:?}");
    }
    (short, long)
}

#[tokio::test]
async fn a_thousand_waiters_cost_memory_a_few_requests_each() {
    loads(stores::memory).await;
}

/// A herd would look at the database a thousand times for each hand-over instead of fifty.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_thousand_waiters_cost_sqlite_a_few_requests_and_reads_each() {
    let (short, long) = loads(stores::sqlite).await;
    let each = |load: Load| load.reads as f64 / load.waiters as f64;
    assert!(each(long) <= 3.0 * each(short) + 20.0, "{short:?} {long:?}");
}
