//! **U**: no two acquisitions of a lock have the same token.

use std::collections::HashMap;

use super::Violation;
use super::lease::LeaseRecord;

/// Every token that was given out twice.
pub fn check(leases: &[LeaseRecord]) -> Vec<Violation> {
    let mut first: HashMap<(&str, u64), &LeaseRecord> = HashMap::new();
    let mut violations = Vec::new();
    for lease in leases {
        if let Some(earlier) = first.insert((&lease.lock, lease.token), lease) {
            violations.push(Violation {
                at: lease.returned,
                lock: lease.lock.clone(),
                what: format!(
                    "token {} went to {} and to {}",
                    lease.token, earlier.worker, lease.worker
                ),
            });
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn the_same_token_on_two_locks_is_fine() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "two", 0, 1, 5);
        assert_eq!(check(&sketch.leases()), []);
    }

    #[test]
    fn a_token_given_twice_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).lease("b", "one", 10, 11, 5);
        assert_eq!(check(&sketch.leases()).len(), 1);
    }
}
