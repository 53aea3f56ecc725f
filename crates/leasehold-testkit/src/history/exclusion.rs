//! **X**: no two leases of one lock overlap by their holders' own account: from the
//! return of the acquire to the request to release, the deadline, or the kill.

use std::collections::HashMap;

use super::Violation;
use super::lease::LeaseRecord;

/// Every lease that began while another was not over.
pub fn check(leases: &[LeaseRecord]) -> Vec<Violation> {
    let mut spans: Vec<&LeaseRecord> =
        leases.iter().filter(|lease| lease.returned < lease.end()).collect();
    spans.sort_by_key(|lease| lease.returned);
    let mut longest: HashMap<&str, &LeaseRecord> = HashMap::new();
    let mut violations = Vec::new();
    for lease in spans {
        let before = longest.entry(&lease.lock).or_insert(lease);
        if before.token != lease.token && lease.returned < before.end() {
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
    violations
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{MS, Sketch};
    use super::*;

    #[test]
    fn a_lease_after_the_deadline_of_a_silent_holder_is_fine() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 101 * MS, 6);
        assert_eq!(check(&sketch.leases()), []);
    }

    #[test]
    fn a_lease_after_a_kill_is_fine() {
        let sketch =
            Sketch::new().lease("a", "one", 0, 1, 5).kill("a", 2).lease("b", "one", 3, 4, 6);
        assert_eq!(check(&sketch.leases()), []);
    }

    #[test]
    fn two_holders_are_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 2, 99 * MS, 6);
        assert_eq!(check(&sketch.leases()).len(), 1);
    }
}
