//! Runtimes that end or lack something, threads without one, and executors that poll inside
//! `wake`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Limits;
use leasehold::backend::memory::MemoryStore;
use leasehold::clock::{Clock, ManualClock};
use leasehold::{ErrorKind, LeaseState, Locks};
use leasehold_conformance::fixture::{Fixture, eventually};

use crate::odd::Odd;

const TTL: Duration = Duration::from_millis(300);

/// The runtime that the client was connected on ends while a caller on another one
/// is collected: it hangs for ever instead of hearing of it.
#[test]
fn the_end_of_the_runtime_is_told_to_those_who_collected() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let odd = Odd { limits: Limits::new(1, 1), slow: Duration::from_secs(1), ..Odd::new() };
    let locks = first.block_on(async { Locks::on(Arc::new(odd)).await.unwrap() });
    let under_way = locks.lock("under way");
    first.spawn(async move { under_way.try_acquire().await.map(drop) });
    let second = tokio::runtime::Runtime::new().unwrap();
    let ended = second.block_on(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let lock = locks.lock("collected");
        let waiting = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.shutdown_background();
        tokio::time::timeout(Fixture::BOUND, waiting).await.is_ok()
    });
    assert!(ended, "hangs for ever");
}

/// A client in a `static`, connected on a runtime that has ended (each `#[tokio::test]`
/// has its own): the lock is granted, and then neither renewed nor fired.
#[test]
fn a_lease_that_nobody_keeps_is_refused_or_fired() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let locks = first.block_on(async { leasehold::connect("memory:").await.unwrap() });
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    let told = second.block_on(async {
        match locks.lock("x").ttl(TTL).acquire().await {
            Err(_) => true,
            Ok(lease) => tokio::time::timeout(Fixture::BOUND, lease.lost()).await.is_ok(),
        }
    });
    assert!(told, "granted, not renewed, and its loss is never told");
}

/// A runtime without I/O: the keeper panics when it makes its timer, and nobody hears.
#[test]
fn a_runtime_without_io_is_refused_or_served() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let kept = runtime.unwrap().block_on(async {
        let Ok(locks) = leasehold::connect("memory:").await else { return true };
        let Ok(lease) = locks.lock("x").ttl(TTL).acquire().await else { return true };
        tokio::time::sleep(TTL * 2).await;
        lease.state() == LeaseState::Held
    });
    assert!(kept, "granted, and never renewed");
}

/// Outside a tokio runtime the calls panic; connecting there is an error that says so.
#[test]
fn a_call_outside_a_runtime_does_not_panic() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(async { leasehold::connect("memory:").await.unwrap() });
    let calling = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(locks.inspect("x")).as_mut().poll(&mut context).is_ready()
    }));
    assert!(calling.is_ok());
}

/// The runtime that the client was connected on ends while a caller on another one waits
/// in the queue: its timers panic when they are polled again.
#[test]
fn the_end_of_the_runtime_is_told_to_those_who_wait() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    let store = MemoryStore::new(Clock::boot());
    let locks = first.block_on(async { Locks::on(store.clone()).await.unwrap() });
    second.block_on(async {
        let holder = Locks::on(store).await.unwrap();
        let _lease = holder.lock("x").acquire().await.unwrap();
        let lock = locks.lock("x").wait(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        while holder.inspect("x").await.unwrap().waiters == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.shutdown_background();
        let told = tokio::time::timeout(Fixture::BOUND, waiting).await;
        let error = told.expect("hangs").expect("panicked").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoRuntime, "{error}");
    });
}

/// A lease in the hands of another runtime when its client's own ends: nobody renews it,
/// and nobody fired its loss, so that work under `run` went on past its deadline.
#[test]
fn the_end_of_the_runtime_is_the_loss_of_its_leases() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let second = tokio::runtime::Runtime::new().unwrap();
    let locks = first.block_on(async { leasehold::connect("memory:").await.unwrap() });
    let lease = first.block_on(locks.lock("x").ttl(TTL).acquire()).unwrap();
    let lost = second.block_on(async {
        first.shutdown_background();
        tokio::time::timeout(Fixture::BOUND, lease.lost()).await
    });
    assert!(lost.is_ok(), "never told");
}

/// The keeper's tasks end with their client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_lets_go_of_its_store() {
    let odd = Arc::new(Odd::new());
    let locks = Locks::on(odd.clone()).await.unwrap();
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    drop(locks);
    eventually("the store is nobody's", async || Arc::strong_count(&odd) == 1).await;
}

/// A waker that looks at the lease (an executor that polls inside `wake`) deadlocks:
/// losses are announced and tokens cancelled under the lease's own mutex.
#[test]
fn a_loss_is_told_outside_the_lock() {
    use std::task::{Context, Poll, Wake, Waker};
    struct Looks(std::sync::Mutex<Option<Arc<leasehold::Lease>>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let lease = self.0.lock().unwrap().clone();
            if let Some(lease) = lease {
                let _ = lease.remaining();
            }
        }
    }
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let hand = Arc::new(ManualClock::new());
            let clock = Clock::manual(hand.clone());
            let store = MemoryStore::new(clock);
            let locks = Locks::on(store).await.unwrap();
            let lease = Arc::new(locks.lock("x").no_renewal().acquire().await.unwrap());
            let waker = Arc::new(Looks(std::sync::Mutex::new(Some(lease.clone()))));
            let cancelled = lease.cancellation_token();
            let mut watching = std::pin::pin!(cancelled.cancelled());
            let waker = Waker::from(waker);
            let pending = watching.as_mut().poll(&mut Context::from_waker(&waker));
            assert_eq!(pending, Poll::Pending);
            hand.advance(Duration::from_secs(60));
            let _ = lease.state();
            let _ = done.send(());
        });
    });
    assert!(told.recv_timeout(Fixture::BOUND).is_ok(), "deadlocked");
}
