//! **F**: the fenced register never accepts a lower token after a higher one, in its
//! own order.

use std::collections::HashMap;

use super::Violation;
use super::event::{Event, Register, What};

/// Every accepted write with a lower token than one before it.
pub fn check(events: &[Event]) -> Vec<Violation> {
    let mut registers: HashMap<&str, Vec<(u64, u64, &Event)>> = HashMap::new();
    for event in events {
        if let What::WriteAccepted { register: Register::Fenced, token, number, .. } = event.what {
            registers.entry(&event.lock).or_default().push((number, token, event));
        }
    }
    let mut violations = Vec::new();
    for writes in registers.values_mut() {
        writes.sort_by_key(|(number, ..)| *number);
        for pair in writes.windows(2) {
            let [(first, before, _), (second, after, event)] = pair else { continue };
            if first == second || before > after {
                violations.push(Violation {
                    at: event.at,
                    lock: event.lock.clone(),
                    what: format!(
                        "write {second} of {} with token {after} was accepted after write \
                         {first} with token {before}",
                        event.worker
                    ),
                });
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn the_registers_own_order_counts_not_that_of_the_recording() {
        let sketch = Sketch::new().fenced("b", "one", 5, 8, 2).fenced("a", "one", 6, 7, 1);
        assert_eq!(check(&sketch.history().events), []);
    }

    #[test]
    fn a_late_write_that_was_accepted_is_caught() {
        let sketch = Sketch::new().fenced("b", "one", 5, 8, 1).fenced("a", "one", 6, 7, 2);
        assert_eq!(check(&sketch.history().events).len(), 1);
    }
}
