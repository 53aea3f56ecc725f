//! The terms of an acquisition: how long, how patient, renewed or not.

use std::time::Duration;

use crate::error::{Error, Result};

/// The shortest TTL: below it, drift and scheduling leave nothing to hold.
pub const MIN_TTL: Duration = Duration::from_millis(20);
/// The longest TTL. Longer work renews.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The TTL of a lock that does not say.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What to do when a renewal gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDoubt {
    /// Count the lease as lost at once.
    Stop,
    /// Pause side effects ([`checkpoint`](crate::Lease::checkpoint) waits) and prove
    /// ownership again, at most this many times and at most until the deadline.
    Prove {
        /// How many times.
        attempts: u32,
    },
}

impl Default for OnDoubt {
    fn default() -> Self {
        Self::Prove { attempts: 8 }
    }
}

/// How long to wait for a lock that another holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Forever,
}

#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) patience: Patience,
    pub(crate) renewed: bool,
    pub(crate) on_doubt: OnDoubt,
    pub(crate) max_hold: Option<Duration>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            patience: Patience::Forever,
            renewed: true,
            on_doubt: OnDoubt::default(),
            max_hold: None,
        }
    }
}

impl Terms {
    pub(crate) fn check(&self) -> Result<()> {
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            return Err(Error::invalid(format!(
                "a TTL must be between {MIN_TTL:?} and 365 days, not {:?}",
                self.ttl
            )));
        }
        if self.max_hold.is_some_and(|cap| cap.is_zero()) {
            return Err(Error::invalid("max_hold must not be zero: the lease would end at once"));
        }
        Ok(())
    }
}
