//! The database's clock jumps.

use std::time::Duration;

use leasehold::{LeaseState, LossReason};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Postgres;

use crate::scene::connect;

const TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn tokens_rise_when_the_databases_clock_goes_back() {
    let server = Postgres::start_with_clock(&[]).unwrap();
    for mode in ["lease", "session"] {
        let mut last = None;
        for seconds in [0, -3_600, 7_200, -86_400] {
            server.set_clock(seconds).unwrap();
            let locks = connect(&server, mode).await;
            for _ in 0..3 {
                let lease = locks.lock(mode).ttl(TTL).acquire().await.unwrap();
                assert!(Some(lease.token()) > last, "{mode} at {seconds}: {}", lease.token());
                last = Some(lease.token());
                lease.release().await.unwrap();
            }
        }
    }
}

/// A lease lasts no longer than its TTL, also when the clock that counts it was set back.
#[tokio::test]
async fn a_clock_that_went_back_does_not_keep_a_dead_holders_lock() {
    let server = Postgres::start_with_clock(&[]).unwrap();
    let (first, second) = (connect(&server, "lease").await, connect(&server, "lease").await);
    let lease = first.lock("a").ttl(TTL).no_renewal().acquire().await.unwrap();
    server.set_clock(-3_600).unwrap();
    let next = within_bound("the lock", second.lock("a").ttl(TTL).acquire()).await.unwrap();
    assert!(next.token() > lease.token());
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
}

/// One that jumps ahead ends leases early: their holders are told, and fenced.
#[tokio::test]
async fn a_clock_that_jumps_ahead_ends_leases_and_their_holders_learn_of_it() {
    let server = Postgres::start_with_clock(&[]).unwrap();
    let (first, second) = (connect(&server, "lease").await, connect(&server, "lease").await);
    let lease = first.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    server.set_clock(3_600).unwrap();
    let next = within_bound("the lock", second.lock("a").acquire()).await.unwrap();
    assert!(next.token() > lease.token());
    let error = lease.renew().await.unwrap_err();
    assert!(error.loss().is_some_and(|loss| loss.reason == LossReason::Taken), "{error:?}");
}
