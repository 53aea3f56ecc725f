//! Time as leases need it: a clock that counts suspended time, timers that
//! fire on it, and a hand-turned clock for tests.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub use alarm::Alarm;
pub use manual::ManualClock;

mod alarm;
mod manual;

/// A point in time on the machine's boot-time clock, in nanoseconds since boot.
///
/// Unlike [`std::time::Instant`] it goes on while the machine is suspended, and
/// all processes of one machine count the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment this many nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// From here to `later`; zero if that is earlier.
    pub const fn until(self, later: Moment) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    pub(crate) const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moment({:?})", Duration::from_nanos(self.0))
    }
}

/// The clock of a client and its store. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Boot,
    Manual(Arc<ManualClock>),
}

impl Clock {
    /// The machine's own clock, `CLOCK_BOOTTIME`: it counts suspended time.
    /// (The pause of a whole virtual machine is seen by no clock inside it.)
    pub fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock that stands still until it is turned, for tests.
    pub fn manual(clock: Arc<ManualClock>) -> Self {
        Self(Source::Manual(clock))
    }

    pub(crate) fn is_boot(&self) -> bool {
        matches!(self.0, Source::Boot)
    }

    /// Now.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::Boot => {
                let now = clock_gettime(ClockId::Boottime);
                Moment(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
            }
            Source::Manual(clock) => clock.now(),
        }
    }

    /// The wall clock: for people, and as a floor for tokens. Never compared with a deadline.
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            Source::Boot => SystemTime::now(),
            Source::Manual(clock) => clock.wall(),
        }
    }

    /// The wall clock in microseconds since 1970, as tokens use it.
    pub fn wall_micros(&self) -> u64 {
        let since_epoch = self.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    }

    /// Sleeps until `moment`: for patience and polling, where firing late costs only comfort.
    ///
    /// While the machine is suspended this timer stands still (it needs no file
    /// descriptor of its own, so there may be many); what guards a lease uses an [`Alarm`].
    pub async fn sleep_until(&self, moment: Moment) {
        match &self.0 {
            Source::Boot => loop {
                let left = self.now().until(moment);
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            },
            Source::Manual(clock) => clock.reached(moment).await,
        }
    }

    /// Sleeps for `duration`, as [`Clock::sleep_until`] does.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        let early = Moment::from_nanos(5);
        assert_eq!(early - Duration::from_secs(1), Moment::from_nanos(0));
        assert_eq!(early + Duration::MAX, Moment::NEVER);
        assert_eq!(Moment::from_nanos(9).until(early), Duration::ZERO);
    }

    #[test]
    fn the_boot_clock_advances_and_never_goes_back() {
        let clock = Clock::boot();
        let before = clock.now();
        let after = std::iter::repeat_with(|| clock.now()).find(|now| *now > before);
        assert!(after.is_some_and(|after| after > before));
    }
}
