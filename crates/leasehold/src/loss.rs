//! The end of a lease that its holder did not ask for.

use std::fmt;
use std::time::Duration;

use crate::clock::Moment;

/// Why and when a lease was lost. Final.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
    pub reason: LossReason,
    /// When the holder's side learned of it, or its deadline passed.
    pub at: Moment,
    /// How long it had been held.
    pub held: Duration,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

/// Why a lease was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed: no renewal was asked for, or this process slept through it,
    /// or the store had let it lapse.
    Expired,
    /// The store says that another owner has the lock.
    Taken,
    /// An operator released it by force.
    Forced(Forced),
    /// The session that carried the lease ended.
    SessionEnded,
    /// The store could not be asked until the deadline, or for as many attempts as were allowed.
    Unreachable,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// What kept the store's locks was removed or replaced: others meet elsewhere by now, and
    /// may hold the same lock there.
    StoreGone,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("expired"),
            Self::Taken => f.write_str("taken by another owner"),
            Self::Forced(forced) => write!(f, "released by force ({forced})"),
            Self::SessionEnded => f.write_str("its session ended"),
            Self::Unreachable => f.write_str("the store could not be reached to prove it"),
            Self::MaxHold => f.write_str("held for as long as max_hold allows"),
            Self::StoreGone => f.write_str("the store that kept it was removed or replaced"),
        }
    }
}

/// Who released a lock by force, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forced {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Forced {
    /// A record of a force-release.
    pub fn new(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { by: by.into(), reason: reason.into() }
    }
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}: {}", self.by, self.reason)
    }
}
