//! The decision: whether the command may go on, by the lease's state and the clock.
//! It asks nobody and signals nobody.

use std::fmt;
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{Lease, LeaseState};

use crate::plan::Plan;

/// When the command has to end, whatever the store says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Nothing will extend the lease beyond this: no renewal, or `--max-hold`.
    pub(crate) ends_at: Moment,
    /// How long the command may take to end.
    pub(crate) grace: Duration,
}

/// What is to be done with the command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It may go on; decide again at this moment, or when something happens.
    GoOn { until: Moment },
    /// It has to end now, and must be gone at this moment.
    End { kill_at: Moment, why: Why },
}

/// Why the command has to end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The lease is over, for this reason.
    Lost(String),
    /// The store does not answer, and the lease ends soon.
    Doubt,
    /// The time that was asked for is up.
    TermEnds,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => write!(f, "the lease was lost ({reason})"),
            Self::Doubt => f.write_str("the store does not answer and the lease runs out"),
            Self::TermEnds => f.write_str("the time it may hold the lock is up"),
        }
    }
}

impl Limits {
    pub(crate) fn new(plan: &Plan, lease: &Lease, now: Moment) -> Self {
        let capped = plan.max_hold.map_or(Moment::NEVER, |cap| now + cap);
        let term = if plan.renewed { Moment::NEVER } else { lease.deadline() };
        Self { ends_at: capped.min(term), grace: plan.grace }
    }

    /// What to do at `now` with the command of a lease in this state.
    pub(crate) fn decide(&self, state: &LeaseState, deadline: Moment, now: Moment) -> Decision {
        let (end, why) = match state {
            // Another may hold the lock already: no more than the grace, even if the
            // deadline is far.
            LeaseState::Lost(loss) => {
                let kill_at = deadline.min(now + self.grace);
                return Decision::End { kill_at, why: Why::Lost(loss.to_string()) };
            }
            LeaseState::Doubtful if deadline < self.ends_at => (deadline, Why::Doubt),
            _ => (self.ends_at, Why::TermEnds),
        };
        if end != Moment::NEVER && now + self.grace >= end {
            return Decision::End { kill_at: end.min(deadline), why };
        }
        // A renewal moves the deadline; if none does, the lease is lost there.
        let last_call = if end == Moment::NEVER { end } else { end - self.grace };
        Decision::GoOn { until: last_call.min(deadline) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: Limits = Limits { ends_at: Moment::NEVER, grace: Duration::from_secs(5) };

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    async fn lost() -> LeaseState {
        let locks = leasehold::connect("memory:").await.unwrap();
        let lease = locks.lock("x").ttl(Duration::from_millis(20)).no_renewal().acquire().await;
        let lease = lease.unwrap();
        LeaseState::Lost(lease.lost().await)
    }

    #[test]
    fn a_held_lease_is_looked_at_again_at_its_deadline() {
        let decision = UNLIMITED.decide(&LeaseState::Held, at(30), at(28));
        assert_eq!(decision, Decision::GoOn { until: at(30) });
    }

    #[test]
    fn doubt_ends_the_command_only_when_the_grace_is_all_that_is_left() {
        let decision = |now| UNLIMITED.decide(&LeaseState::Doubtful, at(30), at(now));
        assert_eq!(decision(20), Decision::GoOn { until: at(25) });
        assert_eq!(decision(25), Decision::End { kill_at: at(30), why: Why::Doubt });
        assert_eq!(decision(29), Decision::End { kill_at: at(30), why: Why::Doubt });
    }

    #[test]
    fn a_term_that_ends_for_certain_ends_the_command_a_grace_before() {
        let limits = Limits { ends_at: at(60), ..UNLIMITED };
        let decision = |now| limits.decide(&LeaseState::Held, at(60), at(now));
        assert_eq!(decision(54), Decision::GoOn { until: at(55) });
        assert_eq!(decision(55), Decision::End { kill_at: at(60), why: Why::TermEnds });
    }

    #[tokio::test]
    async fn after_a_loss_there_is_the_grace_but_nothing_after_the_deadline() {
        let lost = lost().await;
        let kill_at = |deadline, now| match UNLIMITED.decide(&lost, at(deadline), at(now)) {
            Decision::End { kill_at, why: Why::Lost(_) } => kill_at,
            other => panic!("{other:?}"),
        };
        assert_eq!(kill_at(30, 10), at(15));
        assert_eq!(kill_at(30, 28), at(30));
        assert_eq!(kill_at(30, 31), at(30), "in the past: at once");
    }
}
