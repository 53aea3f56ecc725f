//! When a process could not run: paused by the driver, or stalled by the machine.

use std::collections::HashMap;

use super::event::{Event, What};

/// The times when processes did not run.
#[derive(Debug, Default)]
pub struct Windows(HashMap<String, Vec<(u64, u64)>>);

impl Windows {
    /// Those of a history. A pause that was never healed lasts for ever.
    pub fn of(events: &[Event]) -> Self {
        let mut windows: HashMap<String, Vec<(u64, u64)>> = HashMap::new();
        for event in events {
            match &event.what {
                What::Injected { target, pauses: true, .. } => {
                    windows.entry(target.clone()).or_default().push((event.at, u64::MAX));
                }
                What::Paused { .. } => {
                    let list = windows.entry(event.process().to_owned()).or_default();
                    list.push((event.at, u64::MAX));
                }
                What::Healed { target, .. } => close(windows.get_mut(target), event.at),
                What::Woke => close(windows.get_mut(event.process()), event.at),
                What::Stalled { since } => {
                    let list = windows.entry(event.process().to_owned()).or_default();
                    list.push((*since, event.at));
                }
                _ => {}
            }
        }
        windows.values_mut().for_each(|list| list.sort_unstable());
        Self(windows)
    }

    /// The moment by which `process` must have done what was due at `due`: `slack` later,
    /// not counting the times when it did not run.
    pub fn due(&self, process: &str, due: u64, slack: u64) -> u64 {
        let mut until = due.saturating_add(slack);
        for (from, to) in self.0.get(process).into_iter().flatten() {
            if *from <= until && *to > due {
                until = until.max(to.saturating_add(slack));
            }
        }
        until
    }
}

/// Ends the last one that is open.
fn close(list: Option<&mut Vec<(u64, u64)>>, at: u64) {
    let open = list.and_then(|list| list.iter_mut().rev().find(|(_, until)| *until == u64::MAX));
    if let Some((_, until)) = open {
        *until = at;
    }
}
