//! Stores that cannot tell which request of a batch failed: each is answered alone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::Locks;
use leasehold::backend::Limits;

use crate::odd::Odd;

/// Locks that are taken and given back by many tasks at once.
async fn take_and_give_back(odd: Odd) {
    let locks = Locks::on(Arc::new(odd)).await.unwrap();
    let work = (0..8).map(async |number| {
        let lock = locks.lock(format!("job{number}"));
        for _ in 0..3 {
            let lease = lock.acquire().await.unwrap();
            tokio::task::yield_now().await;
            lease.release().await.unwrap();
        }
    });
    join_all(work).await;
}

/// What was done before is not held when it is given back again: that is no loss. (On a Redis
/// Cluster one slot refused a release, and those of the others were told they had lost their lock.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_done_in_part_is_asked_about_one_by_one() {
    let (limits, slow) = (Limits::new(64, 1), Duration::from_millis(1));
    take_and_give_back(Odd { retry_alone: true, limits, slow, ..Odd::new() }).await;
}
