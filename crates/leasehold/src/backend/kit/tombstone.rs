//! Tombstones: owners whose requests may no longer take effect.
//!
//! Whoever does not know what became of an acquire settles it. An owner that did not get
//! the lock has a tombstone from then on, so that a copy of its request that is still under
//! way is refused.

use std::time::Duration;

/// No request is on its way for longer.
const AT_LEAST: Duration = Duration::from_secs(60);

/// How long an owner with this TTL has its tombstone.
pub(in crate::backend) fn term(ttl: Duration) -> Duration {
    ttl.max(AT_LEAST)
}
