//! Callers that tests poll by hand, in an order drawn from a seed.
//!
//! A test adds callers, polls those that are woken, drops some, and lets happen what they wait
//! for. When nothing is left to happen and callers still wait though none is woken, a wake-up was
//! lost: no timer of an executor and no lucky order hides that.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// The seeds of a test: the first `SCHEDULES` (300 without it), or `SCHEDULE_SEED` alone.
pub(super) fn seeds() -> Range<u64> {
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("SCHEDULE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SCHEDULES").unwrap_or(300),
    }
}

/// Callers under way, and the dice that decide about them.
pub(super) struct Callers<'a> {
    pub(super) dice: fastrand::Rng,
    all: Vec<Caller<'a>>,
}

struct Caller<'a> {
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a> Callers<'a> {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: fastrand::Rng::with_seed(seed), all: Vec::new() }
    }

    /// A caller that was not polled yet.
    pub(super) fn add(&mut self, future: impl Future<Output = ()> + 'a) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.all.push(Caller { future: Box::pin(future), woken });
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Polls one of those that are woken; whether there was one.
    pub(super) fn poll_one(&mut self) -> bool {
        let is_woken = |index: &usize| self.all[*index].woken.0.load(Ordering::SeqCst);
        let woken: Vec<usize> = (0..self.all.len()).filter(is_woken).collect();
        let Some(&index) = self.dice.choice(&woken) else { return false };
        let caller = &mut self.all[index];
        caller.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(caller.woken.clone());
        if caller.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(self.all.swap_remove(index));
        }
        true
    }

    /// One of them, woken or not, goes away.
    pub(super) fn drop_one(&mut self) {
        if !self.all.is_empty() {
            let index = self.dice.usize(..self.all.len());
            drop(self.all.swap_remove(index));
        }
    }
}

/// Is polled so many times before it goes on.
pub(super) async fn polls(mut times: u8) {
    poll_fn(|cx| {
        if times == 0 {
            return Poll::Ready(());
        }
        times -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Else the tests that use it would notice nothing.
#[test]
fn a_caller_that_nobody_wakes_is_not_polled_and_stays() {
    let mut callers = Callers::new(0);
    callers.add(std::future::pending());
    callers.add(polls(2));
    let polled = std::iter::from_fn(|| callers.poll_one().then_some(())).count();
    assert_eq!((polled, callers.len()), (4, 1));
}
