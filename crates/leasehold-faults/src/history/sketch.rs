//! Small histories written by hand, for the tests of the checkers.

use super::History;
use super::event::{Asked, Event, Register, What};
use super::lease::{LeaseRecord, leases};
use crate::fault_run::pause_point::Place;

/// A millisecond.
pub(super) const MS: u64 = 1_000_000;
/// All leases end 100 ms after boot unless they begin later.
const DEADLINE: u64 = 100 * MS;

/// A history in the making.
#[derive(Debug, Clone, Default)]
pub(super) struct Sketch(Vec<Event>);

impl Sketch {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn with(mut self, worker: &str, lock: &str, at: u64, what: What) -> Self {
        self.0.push(Event { at, worker: worker.into(), lock: lock.into(), what });
        self
    }

    pub(super) fn lease(self, who: &str, lock: &str, asked: u64, at: u64, token: u64) -> Self {
        let deadline = DEADLINE.max(at + 1);
        self.asks(who, lock, asked).with(who, lock, at, What::Acquired { token, deadline })
    }

    pub(super) fn asks(self, who: &str, lock: &str, at: u64) -> Self {
        self.with(who, lock, at, What::AcquireAsked { how: "queue".into() })
    }

    pub(super) fn asks_impatiently(self, who: &str, lock: &str, at: u64) -> Self {
        self.with(who, lock, at, What::AcquireAsked { how: "impatient".into() })
    }

    pub(super) fn stops(self, who: &str, at: u64) -> Self {
        self.with(who, "", at, What::Stop)
    }

    pub(super) fn loss(self, who: &str, lock: &str, at: u64, token: u64) -> Self {
        self.with(who, lock, at, What::LossSeen { token, deadline: DEADLINE })
    }

    pub(super) fn release_refused(self, who: &str, lock: &str, at: u64, token: u64) -> Self {
        let why = "not held".to_owned();
        self.with(who, lock, at, What::ReleaseAsked { token }).with(
            who,
            lock,
            at + 1,
            What::ReleaseFailed { token, why },
        )
    }

    pub(super) fn asked(self, who: &str, lock: &str, checked: u64, token: u64) -> Self {
        let register = Register::Fenced;
        let what = What::WriteAsked { register, token, deadline: DEADLINE, checked };
        self.with(who, lock, checked + 1, what)
    }

    pub(super) fn kept(
        self,
        who: &str,
        lock: &str,
        asked: Asked,
        checked: u64,
        token: u64,
    ) -> Self {
        let what = What::Kept { asked, token, deadline: DEADLINE, checked };
        self.with(who, lock, checked + 1, what)
    }

    pub(super) fn pause_point(self, who: &str, from: u64, until: u64) -> Self {
        let paused = What::Paused { place: Place::Write, nth: 1 };
        self.with(who, "", from, paused).with(who, "", until, What::Woke)
    }

    pub(super) fn fenced(self, who: &str, lock: &str, at: u64, token: u64, number: u64) -> Self {
        let what = What::WriteAccepted { register: Register::Fenced, token, value: number, number };
        self.with(who, lock, at, what)
    }

    pub(super) fn unfenced(self, who: &str, lock: &str, at: u64) -> Self {
        let register = Register::Unfenced;
        self.with(who, lock, at, What::WriteAccepted { register, token: 1, value: 1, number: 0 })
    }

    pub(super) fn finally(self, lock: &str, value: u64) -> Self {
        self.with("driver", lock, 101 * MS, What::Final { value })
    }

    pub(super) fn pause(self, target: &str, from: u64, until: u64) -> Self {
        let (fault, target) = ("pause".to_owned(), target.to_owned());
        let injected = What::Injected {
            fault: fault.clone(),
            target: target.clone(),
            pauses: true,
            kills: false,
        };
        self.with("driver", "", from, injected).with(
            "driver",
            "",
            until,
            What::Healed { fault, target },
        )
    }

    pub(super) fn kill(self, target: &str, at: u64) -> Self {
        let (fault, target) = ("kill".to_owned(), target.to_owned());
        self.with("driver", "", at, What::Injected { fault, target, pauses: false, kills: true })
    }

    pub(super) fn ended(self, at: u64) -> Self {
        self.with("driver", "", at, What::Ended)
    }

    pub(super) fn history(&self) -> History {
        History::new(self.0.clone())
    }

    pub(super) fn leases(&self) -> Vec<LeaseRecord> {
        leases(&self.history().events)
    }
}
