//! **L**: when a fault is over, every lock that somebody asks for is acquired again within
//! TTL + fail-over; and nobody who asks starves.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{Event, What};
use super::lease::LeaseRecord;
use super::{History, Violation};

/// What a busy machine with stopped processes may need beyond the TTL, unless the history says
/// otherwise.
pub const BOUND: u64 = 3_000_000_000;

/// Every lock that was not had again in time, and every client that never had one.
pub fn check(history: &History, leases: &[LeaseRecord]) -> Vec<Violation> {
    let mut acquired: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for lease in leases {
        acquired.entry(&lease.lock).or_default().push(lease.returned);
    }
    for event in &history.events {
        if matches!(event.what, What::AcquireAsked { .. }) {
            acquired.entry(&event.lock).or_default();
        }
    }
    acquired.values_mut().for_each(|times| times.sort_unstable());
    let ended = history.events.iter().find(|event| event.what == What::Ended);
    let ended = ended.or(history.events.last()).map_or(0, |event| event.at);
    let healed = history.events.iter().filter(|event| matches!(event.what, What::Healed { .. }));
    let mut violations = Vec::new();
    for heal in healed {
        let limit = heal.at + history.ttl() + history.failover();
        for (lock, times) in acquired.iter().filter(|_| limit < ended) {
            let next = times.partition_point(|at| *at < heal.at);
            if times.get(next).is_none_or(|at| *at > limit) {
                violations.push(Violation {
                    at: heal.at,
                    lock: (*lock).to_owned(),
                    what: format!("healed at {}, not acquired by {limit}", heal.at),
                });
            }
        }
    }
    violations.extend(starved(history, leases));
    violations
}

/// Clients that were there to the end, asked, and never got anything: once with patience, or
/// without it for as long as a lock may be out of reach. (A worker that starts just before the end
/// of a run may ask once, for a few milliseconds, and find the lock busy.)
fn starved(history: &History, leases: &[LeaseRecord]) -> Vec<Violation> {
    let events = &history.events;
    let bound = history.ttl() + history.failover();
    let served: BTreeSet<&str> = leases.iter().map(|lease| lease.worker.as_str()).collect();
    let mut asking: BTreeMap<&str, Asking<'_>> = BTreeMap::new();
    let stopped: BTreeSet<&str> = events
        .iter()
        .filter(|event| event.what == What::Stop)
        .map(|event| event.worker.as_str())
        .collect();
    for event in events {
        if let Some(asking) = asking.get_mut(event.worker.as_str()) {
            asking.last = event.at;
        }
        let What::AcquireAsked { how } = &event.what else { continue };
        let there = stopped.contains(event.process()) || stopped.contains(event.worker.as_str());
        if !there || served.contains(event.worker.as_str()) {
            continue;
        }
        if matches!(how.as_str(), "queue" | "impatient") {
            let new = Asking { first: event, last: event.at, patiently: false };
            let asking = asking.entry(&event.worker).or_insert(new);
            asking.patiently |= how == "queue";
        }
    }
    let starved = asking
        .into_values()
        .filter(|asking| asking.patiently || asking.last - asking.first.at > bound)
        .map(|Asking { first: event, .. }| Violation {
            at: event.at,
            lock: event.lock.clone(),
            what: format!("{} asked at {} and was never served", event.worker, event.at),
        });
    starved.collect()
}

/// A client that was never served.
struct Asking<'a> {
    /// Its first question.
    first: &'a Event,
    /// Its last sign of life.
    last: u64,
    /// Whether it ever waited for long.
    patiently: bool,
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{MS, Sketch};
    use super::*;

    fn verdict(sketch: &Sketch) -> usize {
        check(&sketch.history(), &sketch.leases()).len()
    }

    #[test]
    fn a_lock_that_is_had_again_is_fine() {
        let sketch = Sketch::new()
            .lease("a", "one", 0, 1, 5)
            .pause("a", 50 * MS, 900 * MS)
            .lease("b", "one", 2, 1_000 * MS, 6)
            .ended(9_000 * MS);
        assert_eq!(verdict(&sketch), 0);
    }

    #[test]
    fn a_lock_that_stays_out_of_reach_is_caught() {
        let sketch = Sketch::new()
            .lease("a", "one", 0, 1, 5)
            .pause("a", 50 * MS, 900 * MS)
            .lease("b", "one", 2, 8_000 * MS, 6)
            .ended(9_000 * MS);
        assert_eq!(verdict(&sketch), 1);
    }

    #[test]
    fn a_starved_client_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).asks("b", "one", 2).stops("b", 9);
        assert_eq!(verdict(&sketch), 1);
    }

    /// `redis kill` failed L although nothing was wrong: a worker that was started 16 ms before
    /// the end had asked once, with a patience of 7.5 ms.
    #[test]
    fn a_client_that_hardly_asked_did_not_starve() {
        let sketch = Sketch::new()
            .lease("a", "one", 0, 1, 5)
            .asks_impatiently("b", "one", 2 * MS)
            .stops("b", 20 * MS);
        assert_eq!(verdict(&sketch), 0);
    }

    #[test]
    fn an_impatient_client_that_asks_in_vain_for_long_is_caught() {
        let sketch = Sketch::new()
            .lease("a", "one", 0, 1, 5)
            .asks_impatiently("b", "one", 2 * MS)
            .asks_impatiently("b", "one", 4_000 * MS)
            .stops("b", 4_001 * MS);
        assert_eq!(verdict(&sketch), 1);
    }
}
