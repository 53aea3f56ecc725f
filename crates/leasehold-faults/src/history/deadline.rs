//! **D**: the guard knows of its loss by its own deadline.
//!
//! 1. Unless it was released before, the loss is seen by the deadline, give or take
//!    [`SLACK`] of time in which the process ran.
//! 2. No checkpoint that was begun after the deadline lets a write through, and neither `state()`
//!    nor `checkpoint()` nor `verify()` says then that it is held. There is no slack: whatever pauses the process, the guard looks at the clock on every call.
//! 3. The work of a `run()` is not polled after the deadline. Between the look at the clock and the
//!    work's own there are microseconds, for which [`POLL`] is allowed.

use super::Violation;
use super::event::{Asked, Event, What, process};
use super::lease::LeaseRecord;
use super::windows::Windows;

/// How late a timer may fire in a running process on a busy machine.
pub const SLACK: u64 = 150_000_000;

/// From `run()`'s look at the clock to that of the work.
pub const POLL: u64 = 10_000_000;

/// Every loss that was seen late or never, and everything done after the deadline.
pub fn check(events: &[Event], leases: &[LeaseRecord]) -> Vec<Violation> {
    let windows = Windows::of(events);
    let late = leases.iter().filter_map(|lease| late_loss(lease, &windows));
    late.chain(events.iter().filter_map(late_step)).collect()
}

fn late_loss(lease: &LeaseRecord, windows: &Windows) -> Option<Violation> {
    let due = windows.due(process(&lease.worker), lease.deadline, SLACK);
    let knew = [lease.released, lease.loss_seen].into_iter().flatten().min();
    // A worker that shows no sign of life after that was killed, or the run ended.
    let knew = knew.unwrap_or(lease.last_sign);
    (knew > due).then(|| Violation {
        at: knew,
        lock: lease.lock.clone(),
        what: format!(
            "{} did not see the loss of token {} by {due} (deadline {})",
            lease.worker, lease.token, lease.deadline
        ),
    })
}

fn late_step(event: &Event) -> Option<Violation> {
    let (token, at, deadline, what) = match &event.what {
        What::WriteAsked { token, deadline, checked, .. } => {
            (token, *checked, *deadline, "a checkpoint let a write through")
        }
        What::Kept { asked, token, deadline, checked } => {
            let said = match asked {
                Asked::State => "state() said it was held",
                Asked::Checkpoint => "checkpoint() let it pass",
                Asked::Verify => "verify() said it was held",
            };
            (token, *checked, *deadline, said)
        }
        What::Polled { token, deadline } => {
            (token, event.at.saturating_sub(POLL), *deadline, "run() polled its work")
        }
        _ => return None,
    };
    (at > deadline).then(|| Violation {
        at: event.at,
        lock: event.lock.clone(),
        what: format!("{}: {what} at {at} with token {token}, deadline {deadline}", event.worker),
    })
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{MS, Sketch};
    use super::*;

    fn verdict(sketch: &Sketch) -> usize {
        check(&sketch.history().events, &sketch.leases()).len()
    }

    #[test]
    fn a_loss_seen_in_time_or_after_a_pause_is_fine() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).loss("a", "one", 101 * MS, 5);
        assert_eq!(verdict(&sketch), 0);
        let paused = Sketch::new().lease("a", "one", 0, 1, 5).pause("a", 50 * MS, 900 * MS).loss(
            "a",
            "one",
            901 * MS,
            5,
        );
        assert_eq!(verdict(&paused), 0);
    }

    #[test]
    fn a_loss_seen_late_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).loss("a", "one", 300 * MS, 5);
        assert_eq!(verdict(&sketch), 1);
    }

    #[test]
    fn a_loss_never_seen_is_caught() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).fenced("a", "one", 400 * MS, 5, 1);
        assert_eq!(verdict(&sketch), 1);
    }

    #[test]
    fn a_guard_that_says_held_after_the_deadline_is_caught() {
        for asked in [Asked::State, Asked::Checkpoint, Asked::Verify] {
            let sketch = Sketch::new().lease("a", "one", 0, 1, 5);
            assert_eq!(verdict(&sketch.clone().kept("a", "one", asked, 101 * MS, 5)), 1);
            assert_eq!(verdict(&sketch.kept("a", "one", asked, 99 * MS, 5)), 0);
        }
    }

    #[test]
    fn a_pause_point_excuses_a_late_loss_but_no_late_write() {
        let lease = Sketch::new().lease("a", "one", 0, 1, 5);
        let paused = lease.pause_point("a", 50 * MS, 900 * MS);
        assert_eq!(verdict(&paused.clone().loss("a", "one", 901 * MS, 5)), 0);
        assert_eq!(verdict(&paused.asked("a", "one", 901 * MS, 5)), 1);
    }

    #[test]
    fn a_write_allowed_after_the_deadline_is_caught_even_after_a_pause() {
        let sketch = Sketch::new().lease("a", "one", 0, 1, 5).pause("a", 50 * MS, 900 * MS).asked(
            "a",
            "one",
            901 * MS,
            5,
        );
        assert_eq!(verdict(&sketch), 1);
        let in_time = Sketch::new().lease("a", "one", 0, 1, 5).asked("a", "one", 99 * MS, 5);
        assert_eq!(verdict(&in_time), 0);
    }
}
