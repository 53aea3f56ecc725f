//! What the driver has to do, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use super::schedule::Strike;

/// What is to be done about a strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    Inject,
    Heal,
}

/// What is left to do, by time since the beginning of the run.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    acts: BTreeMap<(Duration, usize), (Act, Strike)>,
    count: usize,
    /// The time of the run is over.
    pub(super) ended: bool,
}

impl Agenda {
    pub(super) fn of(strikes: impl Iterator<Item = Strike>) -> Self {
        let mut agenda = Self::default();
        for strike in strikes {
            agenda.put(Act::Inject, strike);
            agenda.put(Act::Heal, strike);
        }
        agenda
    }

    pub(super) fn put(&mut self, act: Act, strike: Strike) {
        let at = match act {
            Act::Inject => strike.at,
            Act::Heal => strike.at + strike.lasts,
        };
        self.count += 1;
        self.acts.insert((at, self.count), (act, strike));
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.acts.keys().next().map(|(at, _)| *at)
    }

    /// The next, if it is due.
    pub(super) fn take(&mut self, now: Duration) -> Option<(Act, Strike)> {
        let first = self.acts.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}
