//! **X**: no two leases of one lock overlap by their holders' own account: from the
//! return of the acquire to the request to release, the deadline, or the kill. And `verify()`,
//! which asks the store, does not say yes when a later token had already been handed out.
//!
//! Where a store may end a lease by itself and its holder only hears of it (a session that the
//! server ends), a deployment says within which time it must have heard: so much of an overlap is
//! allowed, and only with a holder that did hear of its end.

use std::collections::HashMap;

use super::Violation;
use super::event::{Asked, Event, What, process};
use super::lease::LeaseRecord;
use super::windows::Windows;

/// Overlaps that are allowed: with holders that had yet to hear that their store ended them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    /// How many.
    pub overlaps: u64,
    /// The longest, in nanoseconds.
    pub longest: u64,
}

/// Every lease that began while another was not over, and every wrong answer of the store.
/// Holders that were ended by their store hear of it within `heard` nanoseconds; overlaps
/// within that time are no violation, and are counted apart.
pub fn check(events: &[Event], leases: &[LeaseRecord], heard: u64) -> (Vec<Violation>, Allowed) {
    let (mut violations, allowed) = overlaps(leases, heard, &Windows::of(events));
    violations.extend(wrongly_verified(events, leases));
    (violations, allowed)
}

fn wrongly_verified(events: &[Event], leases: &[LeaseRecord]) -> Vec<Violation> {
    // In the order in which they returned, with the highest token until then.
    let mut highest: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    for lease in leases {
        let list = highest.entry(&lease.lock).or_default();
        let before = list.last().map_or(0, |(_, token)| *token);
        list.push((lease.returned, before.max(lease.token)));
    }
    let wrong = events.iter().filter_map(|event| {
        let What::Kept { asked: Asked::Verify, token, checked, .. } = event.what else {
            return None;
        };
        let list = highest.get(event.lock.as_str())?;
        let earlier = list.partition_point(|(returned, _)| *returned < checked);
        let (_, later) = list[..earlier].last().filter(|(_, highest)| *highest > token)?;
        Some(Violation {
            at: event.at,
            lock: event.lock.clone(),
            what: format!(
                "{} was told at {} that token {token} is the holder's, when {later} was out",
                event.worker, event.at
            ),
        })
    });
    wrong.collect()
}

fn overlaps(leases: &[LeaseRecord], heard: u64, windows: &Windows) -> (Vec<Violation>, Allowed) {
    let mut spans: Vec<&LeaseRecord> =
        leases.iter().filter(|lease| lease.returned < lease.end()).collect();
    spans.sort_by_key(|lease| lease.returned);
    let mut longest: HashMap<&str, &LeaseRecord> = HashMap::new();
    let mut violations = Vec::new();
    let mut allowed = Allowed::default();
    for lease in spans {
        let before = longest.entry(&lease.lock).or_insert(lease);
        let overlap = before.end().saturating_sub(lease.returned);
        let overlaps = before.token != lease.token && overlap > 0;
        // A process that does not run hears nothing.
        let in_time =
            |heard| before.end() <= windows.due(process(&before.worker), lease.returned, heard);
        if overlaps && before.was_ended() && heard > 0 && in_time(heard) {
            allowed.overlaps += 1;
            allowed.longest = allowed.longest.max(overlap);
        } else if overlaps {
            violations.push(Violation {
                at: lease.returned,
                lock: lease.lock.clone(),
                what: format!(
                    "{} held token {} from {}, while {} held token {} until {}",
                    lease.worker,
                    lease.token,
                    lease.returned,
                    before.worker,
                    before.token,
                    before.end()
                ),
            });
        }
        if lease.end() > before.end() {
            *before = lease;
        }
    }
    (violations, allowed)
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{MS, Sketch};
    use super::*;

    fn check(sketch: &Sketch) -> Vec<Violation> {
        check_within(sketch, 0)
    }

    fn check_within(sketch: &Sketch, heard: u64) -> Vec<Violation> {
        super::check(&sketch.history().events, &sketch.leases(), heard).0
    }

    #[test]
    fn a_lease_after_the_deadline_of_a_silent_holder_is_fine() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 101 * MS, 6);
        assert_eq!(check(&sketch), []);
    }

    #[test]
    fn a_lease_after_a_kill_is_fine() {
        let sketch =
            Sketch::new().lease("a", "one", 0, 1, 5).kill("a", 2).lease("b", "one", 3, 4, 6);
        assert_eq!(check(&sketch), []);
    }

    #[test]
    fn two_holders_are_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 99 * MS, 6);
        assert_eq!(check(&sketch).len(), 1);
    }

    #[test]
    fn a_holder_that_was_ended_hears_of_it_in_time() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 50 * MS, 6);
        for ended in [
            sketch.clone().loss("a", "one", 55 * MS, 5),
            sketch.clone().release_refused("a", "one", 55 * MS, 5),
        ] {
            assert_eq!(check_within(&ended, 10 * MS), []);
            assert_eq!(check_within(&ended, 4 * MS).len(), 1, "it heard too late");
            assert_eq!(check(&ended).len(), 1, "nothing was said about hearing");
            let (_, allowed) = super::check(&ended.history().events, &ended.leases(), 10 * MS);
            assert_eq!(allowed, Allowed { overlaps: 1, longest: 5 * MS });
        }
    }

    #[test]
    fn a_holder_that_was_not_ended_has_no_time_to_hear_of_it() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 95 * MS, 6);
        assert_eq!(check_within(&sketch, 10 * MS).len(), 1);
        let by_deadline = sketch.loss("a", "one", 101 * MS, 5);
        assert_eq!(check_within(&by_deadline, 10 * MS).len(), 1);
    }

    #[test]
    fn a_store_that_says_yes_to_an_old_token_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 101 * MS, 6);
        let early = sketch.clone().kept("a", "one", Asked::Verify, 100 * MS, 5);
        assert_eq!(check(&early), []);
        let late = sketch.kept("a", "one", Asked::Verify, 102 * MS, 5);
        assert_eq!(check(&late).len(), 1);
    }
}
