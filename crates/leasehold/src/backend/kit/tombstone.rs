//! Tombstones: owners whose requests may no longer take effect.
//!
//! A client that does not know the outcome of an acquire settles it. An owner that did not
//! get the lock has a tombstone from then on, so that a copy of its request that is still
//! under way is refused.

use std::time::Duration;

use super::owner_map::OwnerMap;
use crate::clock::Moment;
use crate::owner::Owner;

/// No request is under way for longer.
const AT_LEAST: Duration = Duration::from_secs(60);

/// How long an owner with this TTL keeps its tombstone.
pub(in crate::backend) fn term(ttl: Duration) -> Duration {
    ttl.max(AT_LEAST)
}

/// The tombstones of a store that keeps them in this process.
#[derive(Debug, Default)]
pub(in crate::backend) struct Tombstones(OwnerMap<Moment>);

impl Tombstones {
    /// This owner gets nothing from now on.
    pub(in crate::backend) fn add(&mut self, owner: Owner, ttl: Duration, now: Moment) {
        self.0.insert(owner, now + term(ttl));
    }

    pub(in crate::backend) fn has(&self, owner: Owner, now: Moment) -> bool {
        self.0.get(&owner).is_some_and(|until| *until > now)
    }

    /// Forgets those whose term is over.
    pub(in crate::backend) fn sweep(&mut self, now: Moment) {
        self.0.retain(|_, until| *until > now);
    }

    pub(in crate::backend) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_outlives_the_ttl_and_every_request() {
        let start = Moment::from_nanos(0);
        let (brief, long) = (Owner::random(), Owner::random());
        let mut tombstones = Tombstones::default();
        tombstones.add(brief, Duration::from_secs(1), start);
        tombstones.add(long, Duration::from_secs(90), start);
        let later = start + Duration::from_secs(59);
        assert!(tombstones.has(brief, later) && tombstones.has(long, later));
        let later = start + Duration::from_secs(60);
        assert!(!tombstones.has(brief, later) && tombstones.has(long, later));
        tombstones.sweep(later);
        assert_eq!(tombstones.len(), 1);
    }
}
