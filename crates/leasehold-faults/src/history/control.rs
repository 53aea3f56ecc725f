//! The control: what the unfenced register lost shows that the faults really struck.

use std::collections::BTreeMap;

use super::event::{Event, Register, What};

/// The control register's account, over all locks of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Control {
    /// Increments that were acknowledged to a worker.
    pub acknowledged: u64,
    /// Of those, how many are not in the final value.
    pub lost: u64,
}

impl Control {
    /// The account of a history.
    pub fn of(events: &[Event]) -> Self {
        let mut locks: BTreeMap<&str, (u64, Option<u64>)> = BTreeMap::new();
        for event in events {
            let account = locks.entry(&event.lock).or_default();
            match event.what {
                What::WriteAccepted { register: Register::Unfenced, .. } => account.0 += 1,
                What::Final { value } => account.1 = Some(value),
                _ => {}
            }
        }
        let mut control = Self::default();
        for (acknowledged, value) in locks.into_values() {
            control.acknowledged += acknowledged;
            // A worker killed after its write did not live to acknowledge it: the value may
            // be higher.
            control.lost += value.map_or(0, |value| acknowledged.saturating_sub(value));
        }
        control
    }

    /// Lost of acknowledged, in percent.
    pub fn percent(&self) -> f64 {
        match self.acknowledged {
            0 => 0.0,
            all => self.lost as f64 * 100.0 / all as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Sketch;
    use super::*;

    #[test]
    fn what_is_not_in_the_final_value_is_lost() {
        let sketch = Sketch::new().unfenced("a", "one", 1).unfenced("b", "one", 2);
        let control = Control::of(&sketch.clone().finally("one", 1).history().events);
        assert_eq!(control, Control { acknowledged: 2, lost: 1 });
        assert_eq!(control.percent(), 50.0);
        let control = Control::of(&sketch.finally("one", 2).history().events);
        assert_eq!(control.lost, 0);
    }
}
