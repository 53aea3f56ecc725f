//! What is explored of the model, and what it must not do without.

use super::{DEADLINE, FRESH, MOVING, ORDERED, Queue, TOLD};
use crate::catalogue::{Case, Size, Subject};

const THREE: Size = Size::new(1, 3);
const FOUR: Size = Size::new(1, 4);

/// All cases.
pub const CASES: &[Case] = &[
    Case::holds(
        "troubles",
        "two troubles and a death",
        THREE,
        Subject::Queue(|model| model.troubles = 2),
    ),
    Case::holds("deaths", "three of four die", FOUR, Subject::Queue(mourning)),
    Case::breaks(
        MOVING,
        "no-repair",
        "a heartbeat that finds the lock free does nothing",
        THREE,
        Subject::Queue(|model| model.rules.beat_repairs = false),
    ),
    Case::breaks(
        MOVING,
        "repairs-for-itself",
        "a heartbeat helps its sender only, if it is first",
        FOUR,
        Subject::Queue(|model| {
            mourning(model);
            model.rules.beat_repairs_for_others = false;
        }),
    ),
    Case::breaks(
        TOLD,
        "unknown-untold",
        "a client that is not in the queue is told to wait",
        THREE,
        Subject::Queue(|model| model.rules.beat_tells_unknown = false),
    ),
    Case::breaks(
        MOVING,
        "unknown-unheeded",
        "a client that is told it is not in the queue goes on waiting",
        THREE,
        Subject::Queue(|model| model.habits.enqueues_again = false),
    ),
    Case::breaks(
        TOLD,
        "grant-untold",
        "a heartbeat does not tell of a grant (a lost push)",
        THREE,
        Subject::Queue(|model| model.rules.beat_tells_granted = false),
    ),
    Case::breaks(
        MOVING,
        "dead-not-skipped",
        "who has not been heard of is granted the lock (redisson#3004)",
        FOUR,
        Subject::Queue(|model| {
            mourning(model);
            model.rules.skips_dead = false;
        }),
    ),
    Case::breaks(
        MOVING,
        "long-grants",
        "who waits is granted the whole TTL unheard",
        FOUR,
        Subject::Queue(|model| {
            mourning(model);
            model.rules.short_grants = false;
        }),
    ),
    Case::breaks(
        ORDERED,
        "newcomer-first",
        "a newcomer takes the free lock",
        THREE,
        Subject::Queue(|model| model.rules.newcomers_queue = false),
    ),
    Case::breaks(
        DEADLINE,
        "deadline-from-push",
        "the deadline counts from the message",
        THREE,
        Subject::Queue(|model| model.habits.counts_from_proof = false),
    ),
    Case::breaks(
        DEADLINE,
        "telling-extends-not",
        "who asks is told of a grant that is older, and counts from the question",
        THREE,
        Subject::Queue(|model| model.rules.telling_extends = false),
    ),
    Case::breaks(
        FRESH,
        "stale-grant",
        "a grant is taken unseen after the wait (etcd#11456)",
        THREE,
        Subject::Queue(|model| model.habits.looks_at_grant = false),
    ),
];

fn mourning(model: &mut Queue) {
    model.deaths = 3;
    model.troubles = 0;
}
