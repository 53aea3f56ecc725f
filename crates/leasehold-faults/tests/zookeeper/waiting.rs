//! Many who wait: those far behind watch one node only.

use std::sync::Arc;

use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Zookeeper;
use parking_lot::Mutex;

use crate::scene::{TTL, client};

/// More than follow the whole queue.
const WAITERS: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_queue_is_served_in_order() {
    let server = Zookeeper::start().unwrap();
    let (holder, _) = client(&server.url("/long?session=3s")).await;
    let lease = holder.lock("job").ttl(TTL).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for place in 0..WAITERS {
        let (locks, _) = client(&server.url("/long?session=3s")).await;
        let (lock, served) = (locks.lock("job").ttl(TTL), served.clone());
        waiting.push(tokio::spawn(async move {
            let lease = lock.acquire().await.unwrap();
            served.lock().push((place, lease.token()));
            lease.release().await.unwrap();
        }));
        let waits = async || holder.inspect("job").await.unwrap().waiters == place + 1;
        eventually("it waits", waits).await;
    }
    // One in the middle of the queue gives up, and is not waited for.
    waiting[30].abort();
    let left = async || holder.inspect("job").await.unwrap().waiters == WAITERS - 1;
    eventually("it leaves", left).await;
    lease.release().await.unwrap();
    for (place, waiter) in waiting.into_iter().enumerate() {
        let ended = within_bound("every waiter's turn", waiter).await;
        assert_eq!(ended.is_err(), place == 30);
    }
    let served = served.lock();
    let expected: Vec<_> = (0..WAITERS).filter(|place| *place != 30).collect();
    assert_eq!(served.iter().map(|(place, _)| *place).collect::<Vec<_>>(), expected);
    assert!(served.is_sorted_by(|(_, a), (_, b)| a < b), "{served:?}");
}
