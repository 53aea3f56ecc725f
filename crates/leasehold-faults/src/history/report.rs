//! What a history says, put together: counts, violations, control, verdict.

use std::fmt;

use super::control::Control;
use super::event::What;
use super::lease::leases;
use super::{History, Violation, deadline, exclusion, fence, liveness, order, unique};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was violated, and the control shows that something could have been.
    Passed,
    /// Something was violated.
    Failed,
    /// Processes were paused, but the control lost nothing: the run proves nothing.
    Void,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Void => "void",
        })
    }
}

/// The judgement of one history.
#[derive(Debug, Clone)]
pub struct Report {
    /// The store.
    pub store: String,
    /// The fault.
    pub fault: String,
    /// Its row in the table of faults that must be survived.
    pub row: u32,
    /// The seed of its schedule.
    pub seed: u64,
    /// Requests to the store and the registers.
    pub operations: u64,
    /// Of those, acquisitions that returned a lease.
    pub acquisitions: u64,
    /// Of those, leases whose loss was seen.
    pub losses: u64,
    /// Writes that the fenced register turned away.
    pub rejected: u64,
    /// Faults that were injected.
    pub injected: u64,
    /// Of those, pauses.
    pub pauses: u64,
    /// The letters of what the store does not promise under this fault.
    pub excused: Vec<String>,
    /// Violations by checker.
    pub violations: Vec<(&'static str, Vec<Violation>)>,
    /// Overlaps with holders that had yet to hear that their store ended them.
    pub allowed: exclusion::Allowed,
    /// What the control lost.
    pub control: Control,
}

impl Report {
    /// Judges a history.
    pub fn of(history: &History) -> Self {
        let events = &history.events;
        let leases = leases(events);
        let (overlapping, allowed) = exclusion::check(events, &leases, history.heard());
        let mut report = Self {
            store: String::new(),
            fault: String::new(),
            row: 0,
            seed: 0,
            operations: 0,
            acquisitions: leases.len() as u64,
            losses: leases.iter().filter(|lease| lease.loss_seen.is_some()).count() as u64,
            rejected: 0,
            injected: 0,
            pauses: 0,
            excused: Vec::new(),
            violations: vec![
                ("U", unique::check(&leases)),
                ("RT", order::check(&leases)),
                ("F", fence::check(events)),
                ("D", deadline::check(events, &leases)),
                ("X", overlapping),
                ("L", liveness::check(history, &leases)),
            ],
            allowed,
            control: Control::of(events),
        };
        events.iter().for_each(|event| report.count(&event.what));
        report
    }

    fn count(&mut self, what: &What) {
        match what {
            What::Began { store, fault, row, seed, excused, .. } => {
                self.excused.clone_from(excused);
                (self.store, self.fault) = (store.clone(), fault.clone());
                (self.row, self.seed) = (*row, *seed);
            }
            What::AcquireAsked { .. }
            | What::RenewAsked { .. }
            | What::ReleaseAsked { .. }
            | What::WriteAsked { .. } => self.operations += 1,
            What::WriteRejected { .. } => self.rejected += 1,
            What::Injected { pauses, .. } => {
                self.injected += 1;
                self.pauses += u64::from(*pauses);
            }
            _ => {}
        }
    }

    /// How many violations there are of what the store promises.
    pub fn violated(&self) -> usize {
        let promised = |letter: &str| !self.excused.iter().any(|excused| excused == letter);
        let kept = self.violations.iter().filter(|(letter, _)| promised(letter));
        kept.map(|(_, found)| found.len()).sum()
    }

    /// Whether holders were kept from knowing of their loss or from acting on it (rows 1 to 3):
    /// then an unfenced register must have suffered.
    fn must_show(&self) -> bool {
        self.pauses > 0 || (self.injected > 0 && (1..=3).contains(&self.row))
    }

    /// How it ended.
    pub fn verdict(&self) -> Verdict {
        if self.violated() > 0 || self.acquisitions == 0 {
            Verdict::Failed
        } else if self.must_show() && self.control.lost == 0 {
            Verdict::Void
        } else {
            Verdict::Passed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{MS, Sketch};
    use super::*;

    fn paused() -> Sketch {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).unfenced("a", "one", 3);
        sketch.pause("a", 4, 50 * MS)
    }

    #[test]
    fn a_paused_run_whose_control_lost_nothing_is_void() {
        let report = Report::of(&paused().finally("one", 1).history());
        assert_eq!(report.verdict(), Verdict::Void);
    }

    #[test]
    fn a_paused_run_whose_control_lost_something_passed() {
        let report = Report::of(&paused().finally("one", 0).history());
        assert_eq!(report.verdict(), Verdict::Passed, "{report:?}");
    }

    #[test]
    fn a_run_that_did_nothing_failed() {
        assert_eq!(Report::of(&History::default()).verdict(), Verdict::Failed);
    }
}
