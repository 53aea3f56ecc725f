//! Releases: what the keeper forgets, and how they end.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, EventKind, Lease, LeaseState, Operation};
use leasehold_conformance::fixture::{Client, Fixture, eventually, within_bound};

use crate::{fixture, forget};

/// `release(self)` lets go of its place with the keeper before it asks the store, and
/// `Drop` lets go of it once more afterwards: by then the place is another lease's,
/// which is then neither renewed nor fired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_under_way_does_not_unkeep_another_lease() {
    let fixture = fixture();
    let client = fixture.client().await;
    let first = client.lock(&fixture.name()).acquire().await.unwrap();
    let gate = client.faults.hold_reply(Operation::Release);
    let releasing = tokio::spawn(first.release());
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    let innocent = client.lock(&fixture.name()).acquire().await.unwrap();
    gate.send(()).unwrap();
    within_bound("the release", releasing).await.unwrap().unwrap();
    fixture.pass(fixture.ttl() * 2).await;
    assert!(client.faults.sent(Operation::Renew) > 0, "nobody renews the innocent lease");
    assert_eq!(innocent.state(), LeaseState::Held);
}

/// The same through an `Arc<Lease>` that leaves `run`: no fault and no race needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_left_its_scope_does_not_unkeep_another() {
    let fixture = fixture();
    let client = fixture.client().await;
    let escaped =
        client.lock(&fixture.name()).run(async |lease| Ok::<_, Error>(lease)).await.unwrap();
    let innocent = client.lock(&fixture.name()).acquire().await.unwrap();
    drop(escaped);
    fixture.pass(fixture.ttl() * 2).await;
    assert_eq!(innocent.state(), LeaseState::Held);
}

/// Renewing a lease that was given back is no success, and must not prolong it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_lease_cannot_be_renewed() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let escaped = Arc::new(parking_lot::Mutex::new(None));
    let kept = escaped.clone();
    for _ in 0..3 {
        client.faults.lose_request(Operation::Release);
    }
    let running = client.lock(&fixture.name()).run(async move |lease| {
        *kept.lock() = Some(lease);
        Ok::<_, Error>(())
    });
    let running = tokio::spawn(running);
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    let lease = escaped.lock().take().unwrap();
    assert_eq!(lease.state(), LeaseState::Released);
    let renewed = lease.renew().await;
    running.abort();
    assert!(renewed.is_err(), "renewed a lease that was given back");
}

/// The store said that the lease had gone before its release: an end that no reader
/// of the events hears of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_finds_nothing_is_told_as_a_loss() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    let mut events = client.locks.events();
    forget(&client, &lease).await;
    let error = lease.release().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld);
    let ended = async {
        loop {
            match events.next().await.unwrap().kind {
                EventKind::Lost(_) | EventKind::Released { .. } => return,
                _ => {}
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_millis(300), ended).await;
    assert!(told.is_ok(), "Granted, and then nothing for ever");
}

/// A release whose caller went away is sent again; that the first one was applied
/// makes the second find nothing, which is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_release_that_was_applied_is_not_told_as_a_loss() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).acquire().await.unwrap();
    let mut events = client.locks.events();
    let _gate = client.faults.hold_reply(Operation::Release);
    let releasing = tokio::spawn(lease.release());
    eventually("the release is sent", async || client.faults.sent(Operation::Release) == 1).await;
    releasing.abort();
    let ended = async {
        loop {
            match events.next().await.unwrap().kind {
                EventKind::Released { .. } => return,
                EventKind::Lost(loss) => panic!("told as lost: {loss}"),
                _ => {}
            }
        }
    };
    within_bound("the end", ended).await;
}

/// How a release ends, while time passes.
async fn release(fixture: &Fixture, lease: Lease) -> leasehold::Result<()> {
    let releasing = tokio::spawn(lease.release());
    let over = async || {
        fixture.advance(Duration::from_millis(1)).await;
        releasing.is_finished()
    };
    eventually("the release", over).await;
    releasing.await.unwrap()
}

/// That it is gone is its own doing if an earlier try may have arrived, whatever came of the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_applied_once_is_a_release() {
    let faults: [fn(&Client); 3] = [
        |client| client.faults.refuse(Operation::Release),
        |client| client.faults.swallow_reply(Operation::Release),
        |client| client.faults.lose_request(Operation::Release),
    ];
    for [first, second] in [[0, 1], [1, 0], [1, 2], [2, 1]] {
        let fixture = fixture();
        let client = fixture.impatient_client().await;
        let lease = client.lock(&fixture.name()).acquire().await.unwrap();
        faults[first](&client);
        faults[second](&client);
        let released = release(&fixture, lease).await;
        assert!(released.is_ok(), "{first} {second}: {released:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_release_of_what_is_gone_is_none() {
    let fixture = fixture();
    let client = fixture.client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    forget(&client, &lease).await;
    client.faults.refuse(Operation::Release);
    let error = release(&fixture, lease).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld, "{error}");
}

/// The only try that may have arrived was sent after the end of the lease: it gave nothing back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_late_is_none() {
    let fixture = fixture();
    let client = fixture.impatient_client().await;
    let lease = client.lock(&fixture.name()).no_renewal().acquire().await.unwrap();
    client.faults.refuse(Operation::Release);
    client.faults.lose_request(Operation::Release);
    let mut events = client.locks.events();
    let releasing = tokio::spawn(lease.release());
    eventually("one try", async || client.faults.sent(Operation::Release) == 1).await;
    fixture.advance(fixture.ttl()).await;
    let told = |kind: &EventKind| matches!(kind, EventKind::Lost(_) | EventKind::Released { .. });
    let told = fixture.pass_until(&mut events, told).await;
    assert!(matches!(told.kind, EventKind::Lost(_)), "{told:?}");
    let error = within_bound("the release", releasing).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_the_background_is_tried_again_and_is_no_storm() {
    let fixture = fixture();
    let client = fixture.client().await;
    let ttl = Duration::from_secs(60);
    let lease = client.lock(&fixture.name()).ttl(ttl).acquire().await.unwrap();
    for _ in 0..2_000 {
        client.faults.refuse(Operation::Release);
    }
    drop(lease);
    fixture.pass(ttl / 2).await;
    let sent = client.faults.sent(Operation::Release);
    assert!((10..150).contains(&sent), "{sent} tries in half a minute");
}

/// What is sent for a lost lease when its guard is dropped frees the lock, and is no second end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_that_is_dropped_ends_once() {
    for forced in [false, true] {
        let fixture = fixture();
        let client = fixture.client().await;
        let mut events = client.locks.events();
        let lock = client.lock(&fixture.name()).max_hold(fixture.ttl() / 4);
        let lease = lock.acquire().await.unwrap();
        match forced {
            true => _ = client.locks.force_release(lease.name(), "stuck").await.unwrap(),
            false => fixture.pass(fixture.ttl() / 4).await,
        }
        assert!(lease.verify().await.unwrap_err().loss().is_some());
        drop(lease);
        let free = async || lock.try_acquire().await.unwrap().is_some();
        eventually("it is free", free).await;
        fixture.settle_down().await;
        // Given back as well, once for each that was granted.
        drop((client, lock));
        let (mut granted, mut ended) = (0, 0);
        while let Some(event) = events.next().await {
            granted += usize::from(matches!(event.kind, EventKind::Granted { .. }));
            let ends = matches!(event.kind, EventKind::Lost(_) | EventKind::Released { .. });
            ended += usize::from(ends);
        }
        assert_eq!(granted, ended, "forced: {forced}");
    }
}
