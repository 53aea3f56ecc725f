//! How long a process stood still while it held leases.

use std::time::Duration;

use leasehold_conformance::fixture::eventually;

use crate::fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_can_tell_for_how_long() {
    let fixture = fixture();
    let client = fixture.client().await;
    let ttl = Duration::from_secs(3_600);
    let _lease = client.locks.lock(fixture.name()).ttl(ttl).acquire().await.unwrap();
    let seen = async || {
        fixture.stop(Duration::from_secs(10));
        !client.locks.longest_stall().longest.is_zero()
    };
    eventually("a stall", seen).await;
    let stall = client.locks.longest_stall();
    assert!(stall.longest > Duration::from_secs(9), "{stall:?}");
    assert_eq!(stall.shortest_ttl, Some(ttl));
}

/// Its TTL is forgotten with it, and what was kept for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standing_still_after_the_last_release_is_no_stall() {
    let fixture = fixture();
    let client = fixture.client().await;
    client.lock(&fixture.name()).acquire().await.unwrap().release().await.unwrap();
    // What was looked for while there was a lease.
    fixture.pass(Duration::from_secs(1)).await;
    fixture.stop(Duration::from_secs(3_600));
    fixture.settle_down().await;
    let stall = client.locks.longest_stall();
    assert!(stall.longest < Duration::from_secs(60), "{stall:?}");
}
