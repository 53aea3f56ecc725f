//! A clock that stands still until a test turns it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Moment;

/// A clock that stands still until it is turned.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use leasehold::clock::{Clock, ManualClock};
/// let hand = Arc::new(ManualClock::new());
/// let clock = Clock::manual(hand.clone());
/// let before = clock.now();
/// hand.advance(Duration::from_secs(30));
/// assert_eq!(before.until(clock.now()), Duration::from_secs(30));
/// ```
#[derive(Debug)]
pub struct ManualClock {
    now: watch::Sender<Moment>,
    wall: Mutex<SystemTime>,
}

impl ManualClock {
    /// A clock that reads one hour after boot, in September 2001.
    pub fn new() -> Self {
        Self {
            now: watch::channel(Moment::from_nanos(3_600_000_000_000)).0,
            wall: Mutex::new(UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
        }
    }

    /// Turns it on by `duration`, the wall clock with it, and fires what is due.
    pub fn advance(&self, duration: Duration) {
        *self.wall.lock() += duration;
        self.now.send_modify(|now| *now = *now + duration);
    }

    /// Sets the wall clock alone, as an operator or a bad time server would.
    pub fn set_wall(&self, wall: SystemTime) {
        *self.wall.lock() = wall;
    }

    pub(super) fn now(&self) -> Moment {
        *self.now.borrow()
    }

    pub(super) fn wall(&self) -> SystemTime {
        *self.wall.lock()
    }

    pub(super) async fn reached(&self, moment: Moment) {
        let mut hand = self.now.subscribe();
        // Fails only when the sender is gone, and that is `self`.
        let _ = hand.wait_for(|now| *now >= moment).await;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}
