//! The longest this process stood still while it held leases: a garbage-collected
//! neighbour, a blocked executor, SIGSTOP, a starved virtual machine. A stall of a third
//! of a TTL costs a renewal, one of a whole TTL costs the lease.

use std::time::Duration;

use metrics::gauge;
use parking_lot::Mutex;

use super::meter::LONGEST_STALL_SECONDS;
use crate::clock::Moment;

/// The longest stall of this process, as far as its keeper saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stall {
    /// How long.
    pub longest: Duration,
    /// The shortest TTL that was held when it happened.
    pub shortest_ttl: Option<Duration>,
}

/// Measures how much later than asked the keeper is woken.
#[derive(Debug)]
pub(crate) struct StallWatch {
    store: &'static str,
    seen: Mutex<Stall>,
}

impl StallWatch {
    /// How often the keeper looks while it holds leases. Shorter stalls are not seen,
    /// and harm nobody.
    pub(crate) const TICK: Duration = Duration::from_millis(250);
    /// What is no stall but scheduling.
    const NOISE: Duration = Duration::from_millis(10);

    pub(crate) fn new(store: &'static str) -> Self {
        Self { store, seen: Mutex::default() }
    }

    pub(crate) fn seen(&self) -> Stall {
        *self.seen.lock()
    }

    /// The keeper asked to be woken at `wanted` and is awake at `now`.
    pub(crate) fn woken(&self, wanted: Moment, now: Moment, shortest_ttl: Option<Duration>) {
        let stall = wanted.until(now);
        let Some(ttl) = shortest_ttl.filter(|_| stall > Self::NOISE) else { return };
        if stall >= ttl / 3 {
            tracing::warn!(target: "leasehold", store = self.store, ?stall, shortest_ttl = ?ttl,
                "this process stood still for long enough to miss renewals; use a longer TTL, \
                 or find what blocks it");
        }
        let mut seen = self.seen.lock();
        if stall > seen.longest {
            *seen = Stall { longest: stall, shortest_ttl };
            gauge!(LONGEST_STALL_SECONDS, "store" => self.store).set(stall.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_longest_and_ignores_noise() {
        let watch = StallWatch::new("memory");
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let ttl = Some(Duration::from_secs(30));
        watch.woken(at(100), at(105), ttl);
        assert_eq!(watch.seen(), Stall::default());
        watch.woken(at(100), at(2_100), ttl);
        watch.woken(at(3_000), at(3_500), ttl);
        assert_eq!(watch.seen().longest, Duration::from_secs(2));
        assert_eq!(watch.seen().shortest_ttl, ttl);
    }

    #[test]
    fn a_process_without_leases_may_stand_still() {
        let watch = StallWatch::new("memory");
        watch.woken(Moment::from_nanos(0), Moment::from_nanos(9_000_000_000), None);
        assert_eq!(watch.seen(), Stall::default());
    }
}
