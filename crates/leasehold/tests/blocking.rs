//! The API for threads.

use std::time::Duration;

use leasehold::{Error, ErrorKind, LeaseState, LossReason, blocking};

const TTL: Duration = Duration::from_millis(300);

#[test]
fn a_lease_is_renewed_between_calls_and_excludes_others() {
    let locks = blocking::connect("memory:").unwrap();
    let mut events = locks.events();
    // Long enough for a machine that is busy for a second.
    let lease = locks.lock("x").ttl(Duration::from_secs(2)).acquire().unwrap();
    let renewals = events.by_ref().filter(|e| matches!(e.kind, leasehold::EventKind::Renewed));
    assert_eq!(renewals.take(4).count(), 4, "more than one TTL");
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(locks.lock("x").try_acquire().unwrap().is_none());
    assert_eq!(lease.checkpoint().unwrap(), lease.token());
    lease.release().unwrap();
    assert!(locks.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn a_dropped_lease_is_free_at_once() {
    let locks = blocking::connect("memory:").unwrap();
    drop(locks.lock("x").acquire().unwrap());
    assert!(locks.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn the_last_lease_releases_although_its_client_goes_with_it() {
    let other = blocking::connect("memory:last-lease").unwrap();
    let lease = blocking::connect("memory:last-lease").unwrap().lock("x").acquire().unwrap();
    assert!(other.lock("x").try_acquire().unwrap().is_none());
    drop(lease);
    assert!(other.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn threads_take_turns() {
    let locks = blocking::connect("memory:").unwrap();
    let counter = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (locks, counter) = (locks.clone(), counter.clone());
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let add = |_: &blocking::Lease| {
                        // Not atomic on purpose: only the lock makes it so.
                        let seen = counter.load(std::sync::atomic::Ordering::SeqCst);
                        std::thread::yield_now();
                        counter.store(seen + 1, std::sync::atomic::Ordering::SeqCst);
                        Ok::<_, Error>(())
                    };
                    locks.lock("x").run(add).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(counter.load(std::sync::atomic::Ordering::SeqCst), 160);
}

#[test]
fn work_that_outlived_its_lease_is_an_error() {
    let locks = blocking::connect("memory:").unwrap();
    let outcome = locks.lock("x").ttl(TTL).no_renewal().run(|lease| {
        let loss = lease.lost_within(Duration::from_secs(20))?.expect("its term ends");
        assert_eq!(loss.reason, LossReason::Expired);
        Ok::<_, Error>("done")
    });
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::Lost(_)));
}

#[test]
fn work_that_panics_releases() {
    let locks = blocking::connect("memory:").unwrap();
    let lock = locks.lock("x");
    let panicking =
        std::thread::spawn(move || lock.run(|_| -> Result<(), Error> { panic!("as it happens") }));
    assert!(panicking.join().is_err());
    assert!(locks.lock("x").try_acquire().unwrap().is_some());
}

#[test]
fn inside_an_async_runtime_it_is_an_error_not_a_panic() {
    let locks = blocking::connect("memory:").unwrap();
    let lease = locks.lock("x").acquire().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let no_runtime = |error: &Error| *error.kind() == ErrorKind::NoRuntime;
        assert!(no_runtime(&blocking::connect("memory:").unwrap_err()));
        assert!(no_runtime(&locks.lock("y").acquire().unwrap_err()));
        assert!(no_runtime(&lease.checkpoint().unwrap_err()));
        drop(lease);
    });
    // Released in the background, on the client's own thread.
    let lock = locks.lock("x").wait(Duration::from_secs(20));
    lock.acquire().unwrap().release().unwrap();
    runtime.block_on(async { drop(locks) });
}

/// Tokio's own thread-local state may be gone by then, and it panics without it.
#[test]
fn a_lease_kept_by_a_thread_is_released_when_that_ends() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<blocking::Lease>> = const { std::cell::RefCell::new(None) };
    }
    let locks = blocking::connect("memory:").unwrap();
    let lock = locks.lock("x");
    let thread = std::thread::spawn(move || {
        KEPT.with(|kept| *kept.borrow_mut() = None);
        let lease = lock.acquire().unwrap();
        KEPT.with(|kept| *kept.borrow_mut() = Some(lease));
    });
    thread.join().unwrap();
    locks.lock("x").wait(Duration::from_secs(20)).acquire().unwrap().release().unwrap();
}
