//! A scope under a lock.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Error, ErrorKind, EventKind};

use crate::fixture::{Fixture, eventually, next_event, within_bound};

/// The work has the lock while it runs, and nobody has it afterwards.
pub async fn the_work_runs_under_the_lock_and_gives_its_result(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let work = async |lease: Arc<leasehold::Lease>| {
        assert!(other.lock(&name).try_acquire().await?.is_none());
        lease.checkpoint().await
    };
    let token = client.lock(&name).run(work).await.unwrap();
    let next = other.lock(&name).try_acquire().await.unwrap().expect("released");
    assert!(next.token() > token);
}

/// However the work ends, the lock is given back.
pub async fn the_lock_is_released_when_the_work_fails(fixture: &Fixture) {
    #[derive(Debug, PartialEq)]
    struct Failed;
    impl From<Error> for Failed {
        fn from(error: Error) -> Self {
            panic!("the work's own error is wanted, not {error}")
        }
    }
    let client = fixture.client().await;
    let name = fixture.name();
    let outcome = client.lock(&name).run(async |_| Err::<(), _>(Failed)).await;
    assert_eq!(outcome, Err(Failed));
    assert!(client.lock(&name).try_acquire().await.unwrap().is_some());
}

/// A process that slept past its deadline takes not one more step, even if its next
/// one was ready before any timer fired.
pub async fn the_work_is_not_polled_after_a_loss(fixture: &Fixture) {
    let client = fixture.client().await;
    let mut slept = false;
    let work = client.lock(&fixture.name()).run(async |_| {
        std::future::poll_fn(|context| {
            assert!(!slept, "one step too many");
            slept = true;
            fixture.stop(fixture.ttl() * 2);
            context.waker().wake_by_ref();
            Poll::<Result<(), Error>>::Pending
        })
        .await
    });
    let error = within_bound("the loss", work).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
}

/// Work that ended, but under a lease that had gone, may have overlapped.
pub async fn work_that_ended_too_late_is_an_error(fixture: &Fixture) {
    let client = fixture.client().await;
    let lock = client.lock(&fixture.name()).no_renewal();
    let late = lock.run(async |_| {
        fixture.stop(fixture.ttl());
        Ok::<_, Error>("done")
    });
    let error = late.await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
}

/// Dropping the scope drops the work and gives the lock back.
pub async fn a_cancelled_run_releases(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let name = fixture.name();
    let mut events = client.locks.events();
    let lock = client.lock(&name);
    let running = tokio::spawn(lock.run(async |_| {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok::<_, Error>(())
    }));
    next_event(&mut events, |kind| matches!(kind, EventKind::Granted { .. })).await;
    running.abort();
    let free = async || other.lock(&name).try_acquire().await.unwrap().is_some();
    eventually("the lock is free", free).await;
}
