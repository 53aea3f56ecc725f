//! What a run under a fault looks like: how many workers, how long their leases, how often they
//! are struck.
//!
//! All times are in proportion to the TTL, so that a store whose leases last seconds has
//! no more of its workers stopped at a time than one whose leases last a third of one.

use std::time::Duration;

use super::fault::{self, Fault};
use super::pause_point::{PausePoints, Place};
use super::schedule::Rhythm;

/// The shape of a run. A deployment may change what is usual.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Processes, or threads where the store does not reach beyond a process.
    pub workers: usize,
    /// Clients in each, every one with a connection of its own.
    pub clients: usize,
    /// How many locks they share.
    pub locks: usize,
    /// The TTL of their leases.
    pub ttl: Duration,
    /// Between the reading and the writing of the control, at most.
    pub gap: Duration,
    /// Of a thousand acquisitions, how many are held for longer than the TTL.
    pub long: u32,
    /// How many of the workers, the first, hold all of theirs for so long.
    pub holders: usize,
    /// For how long these are held.
    pub long_hold: Duration,
    /// The servers end connections that are silent for between one and two of these, where
    /// a lock ends with its connection.
    pub gives_up: Option<Duration>,
    /// They only ever wait in the queue, so that most of their time is spent there.
    pub only_queues: bool,
    /// Of how many one is chosen for a strike: the first of the workers, or servers.
    pub slots: usize,
    /// When it strikes; `None` if there are only pause points, or the load alone is the fault.
    pub rhythm: Option<Rhythm>,
    /// How many pause by themselves: the last of the workers. Never all, so that
    /// somebody is there to take the locks of those that are stopped.
    pub pausing: usize,
    /// Where and for how long these pause.
    pub pause_points: Option<PausePoints>,
}

impl Plan {
    /// What is usual under this fault with leases of this length.
    pub fn usual(fault: Fault, ttl: Duration) -> Self {
        let workers = match fault {
            Fault::Waiters => 1,
            Fault::Kill | Fault::Queue => 12,
            _ => 8,
        };
        let waiters = fault == Fault::Waiters;
        Self {
            workers,
            clients: if waiters { 1_000 } else { 1 },
            locks: match fault {
                Fault::Waiters => 1,
                // Nobody sleeps between reading and writing here, so that the control has
                // nothing to show: more locks are held at the moment of a strike instead.
                Fault::Kill | Fault::Disk => 8,
                _ => 4,
            },
            // A thousand in the queue must not lapse while this one process is busy with them.
            ttl: if waiters { ttl.max(Duration::from_secs(30)) } else { ttl },
            gap: if waiters { Duration::ZERO } else { Duration::from_millis(2) },
            long: 3,
            // One that is cut off is only late if it holds on for long.
            holders: if fault == Fault::Partition { 4 } else { 0 },
            long_hold: long_hold(fault, ttl),
            gives_up: None,
            only_queues: matches!(fault, Fault::Queue | Fault::Waiters),
            slots: match fault {
                Fault::Queue => 4,
                // Those who hold on for long, and two of those who wait for them.
                Fault::Partition => 6,
                _ if fault.place() == fault::Place::Deployment => 1,
                _ => workers,
            },
            rhythm: rhythm(fault, ttl),
            pausing: 4,
            pause_points: pause_points(fault, ttl),
        }
    }
}

/// Longer than the TTL, by renewals. One that is cut off needs time to be late in: the store
/// may end its lease as late as two TTLs after the cut. Not for so long that others go without.
fn long_hold(fault: Fault, ttl: Duration) -> Duration {
    let beyond = match fault {
        Fault::Partition => (ttl * 2).min(Duration::from_secs(2)),
        _ => (ttl * 3 / 2).min(Duration::from_secs(1)),
    };
    ttl + beyond.max(ttl / 4)
}

fn pause_points(fault: Fault, ttl: Duration) -> Option<PausePoints> {
    use Place::{Answered, Asking, Believed, Called, Queued, Write};
    let (shortest, places) = match fault {
        Fault::Pause | Fault::Freeze => (ttl * 2, vec![(Write, 25)]),
        // More than half of them between reading and writing, for the control to show anything.
        Fault::Queue => {
            let steps = [Asking, Answered, Queued, Called, Believed].map(|step| (step, 80));
            (ttl, [(Write, 8)].into_iter().chain(steps).collect())
        }
        _ => return None,
    };
    Some(PausePoints { shortest, longest: ttl * 5, places })
}

fn rhythm(fault: Fault, ttl: Duration) -> Option<Rhythm> {
    let rhythm = |every, shortest, longest| Some(Rhythm { every, shortest, longest });
    match fault {
        Fault::Queue => rhythm(ttl.mul_f64(1.5), ttl / 60, ttl * 5),
        Fault::Partition => rhythm(ttl.mul_f64(0.7), ttl / 2, ttl * 3),
        Fault::Network => rhythm(ttl / 2, ttl / 30, ttl * 2),
        Fault::Clock => rhythm(ttl * 3, ttl / 2, ttl * 4),
        Fault::Amnesia | Fault::Older | Fault::Restart | Fault::Leader => {
            rhythm(ttl * 6, ttl / 30, ttl * 3)
        }
        // Long enough for what it knows to have run out when it wakes.
        Fault::Stopped => rhythm(ttl * 3, ttl * 2, ttl * 4),
        Fault::Kill => rhythm(ttl / 3, ttl / 300, ttl / 6),
        Fault::Disk => rhythm(ttl * 5, ttl / 6, ttl * 2),
        Fault::Pause | Fault::Freeze | Fault::Waiters => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_workers_always_run_whatever_the_ttl() {
        for ttl in [300, 2_000, 10_000].map(Duration::from_millis) {
            for fault in Fault::ALL.into_iter().filter(|fault| fault.pauses()) {
                let plan = Plan::usual(fault, ttl);
                let struck = plan.rhythm.map_or(0, |_| plan.slots) + plan.pausing;
                assert!(struck < plan.workers, "{fault:?} {ttl:?}");
            }
        }
    }

    #[test]
    fn most_workers_are_in_touch_whatever_the_ttl() {
        for ttl in [300, 2_000, 10_000].map(Duration::from_millis) {
            for fault in [Fault::Partition, Fault::Network, Fault::Kill] {
                let plan = Plan::usual(fault, ttl);
                let rhythm = plan.rhythm.expect("it strikes");
                let struck = (rhythm.shortest + rhythm.longest).div_duration_f64(rhythm.every * 2);
                assert!(struck < plan.workers as f64 / 2.0, "{fault:?} {ttl:?}: {struck}");
            }
        }
    }
}
