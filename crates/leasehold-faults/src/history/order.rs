//! **RT**: if A's acquire returned before B's was asked for, A's token is the lower one.

use super::Violation;
use super::lease::LeaseRecord;

/// Every acquisition whose token does not exceed all that had returned before it was
/// asked for.
pub fn check(leases: &[LeaseRecord]) -> Vec<Violation> {
    let mut locks: Vec<&str> = leases.iter().map(|lease| lease.lock.as_str()).collect();
    locks.sort_unstable();
    locks.dedup();
    locks.into_iter().flat_map(|lock| check_lock(leases, lock)).collect()
}

fn check_lock(leases: &[LeaseRecord], lock: &str) -> Vec<Violation> {
    let mut by_return: Vec<_> = leases.iter().filter(|lease| lease.lock == lock).collect();
    let mut by_ask = by_return.clone();
    by_return.sort_by_key(|lease| lease.returned);
    by_ask.sort_by_key(|lease| lease.asked);
    let mut returned = by_return.into_iter().peekable();
    let mut highest: Option<&LeaseRecord> = None;
    let mut violations = Vec::new();
    for later in by_ask {
        while let Some(earlier) = returned.next_if(|lease| lease.returned < later.asked) {
            if highest.is_none_or(|highest| earlier.token > highest.token) {
                highest = Some(earlier);
            }
        }
        if let Some(earlier) = highest.filter(|highest| highest.token >= later.token) {
            violations.push(Violation {
                at: later.returned,
                lock: lock.to_owned(),
                what: format!(
                    "{} had token {} at {}, then {} asked at {} and got {}",
                    earlier.worker,
                    earlier.token,
                    earlier.returned,
                    later.worker,
                    later.asked,
                    later.token
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
    fn acquisitions_that_were_asked_for_together_may_have_any_order() {
        let sketch = Sketch::new().lease("a", "one", 0, 10, 6).lease("b", "one", 5, 20, 5);
        assert_eq!(check(&sketch.leases()), []);
    }

    #[test]
    fn a_lower_token_after_a_higher_one_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 10, 6).lease("b", "one", 11, 20, 5);
        assert_eq!(check(&sketch.leases()).len(), 1);
    }
}
