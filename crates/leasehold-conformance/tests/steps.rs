//! Row 2: a client that is paused between two steps of its acquire, for longer than its TTL.
//! Whatever it was told before, it looks again afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::failpoint::{Failpoints, Step};
use leasehold::{Lease, LeaseState, Locks};
use leasehold_conformance::fixture::{StoreUnderTest, eventually, within_bound};
use leasehold_conformance::stores;

const TTL: Duration = Duration::from_secs(2);
const STEPS: [Step; 5] = [Step::Asking, Step::Answered, Step::Queued, Step::Called, Step::Believed];

type Fresh = fn() -> Arc<dyn StoreUnderTest>;
const STORES: &[(&str, Fresh)] = &[
    ("memory", stores::memory),
    #[cfg(feature = "sqlite")]
    ("sqlite", stores::sqlite),
];

/// What a client has after it was paused once, at this step, for two TTLs.
async fn paused_at(fresh: Fresh, step: Step) -> Lease {
    let store = fresh();
    let hand = Arc::new(ManualClock::new());
    let clock = Clock::manual(hand.clone());
    let other = Locks::on(store.open(clock.clone()).await).await.unwrap();
    let paused = Arc::new(AtomicBool::new(false));
    let (failpoints, once, turning) = (Failpoints::default(), paused.clone(), hand.clone());
    failpoints.at_each_step(move |reached| {
        if reached == step && !once.swap(true, Ordering::Relaxed) {
            turning.advance(TTL * 2);
        }
    });
    let connect = Locks::on(store.open(clock).await);
    let locks = connect.failpoints(failpoints).await.unwrap();
    // In the queue and called only if another had it first.
    let before = match step {
        Step::Queued | Step::Called => Some(other.lock("one").ttl(TTL).acquire().await.unwrap()),
        _ => None,
    };
    let lock = locks.lock("one").ttl(TTL).wait(Duration::from_secs(3_600));
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    if let Some(before) = before {
        // One that was paused in the queue may have lost its place.
        let queued = async || {
            paused.load(Ordering::Relaxed) || other.inspect("one").await.unwrap().waiters == 1
        };
        eventually(&format!("paused at {step:?}: the queue"), queued).await;
        // Gone already when the pause made it lapse.
        let _ = before.release().await;
    }
    let passing = async {
        loop {
            // It tries again after a while.
            hand.advance(Duration::from_millis(1));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let what = format!("paused at {step:?}: the acquire");
    let acquired = tokio::select! {
        acquired = within_bound(&what, acquiring) => acquired,
        () = passing => unreachable!("passes for ever"),
    };
    let lease = acquired.unwrap().unwrap();
    assert!(paused.load(Ordering::Relaxed), "it never came to {step:?}");
    lease
}

#[tokio::test]
async fn a_pause_between_two_steps_gives_no_lease_that_is_over() {
    for &(kind, fresh) in STORES {
        for step in STEPS.into_iter().filter(|step| *step != Step::Believed) {
            let lease = paused_at(fresh, step).await;
            assert_eq!(lease.state(), LeaseState::Held, "{kind} {step:?}");
            assert!(lease.verify().await.is_ok(), "{kind} {step:?}");
        }
    }
}

/// Nothing looks at the clock between this step and the caller's own: the guard must.
#[tokio::test]
async fn a_pause_after_the_last_look_gives_a_lease_that_says_so() {
    for &(kind, fresh) in STORES {
        let lease = paused_at(fresh, Step::Believed).await;
        assert!(matches!(lease.state(), LeaseState::Lost(_)), "{kind} {:?}", lease.state());
        assert!(lease.checkpoint().await.is_err(), "{kind}");
        assert!(lease.verify().await.is_err(), "{kind}");
    }
}
