//! What is explored of the model, and what it must not do without.

use super::{DEADLINE, FRESH, Line, MOVING, ORDERED, TOLD};
use crate::catalogue::{Case, Explore, Size};
use crate::check::{Outcome, check};

const THREE: Size = Size::new(1, 3);
const FOUR: Size = Size::new(1, 4);

/// All cases.
pub const CASES: &[Case] = &[
    Case::sound("line", "troubles", "two troubles and a death", THREE, |size, sought| {
        explore(size, sought, |model| model.troubles = 2)
    }),
    Case::sound("line", "deaths", "three of four die", FOUR, |size, sought| {
        explore(size, sought, mourning)
    }),
    broken(
        "no-repair",
        "a heartbeat that finds the lock free does nothing",
        MOVING,
        |size, sought| explore(size, sought, |model| model.rules.beat_repairs = false),
    ),
    deadly(
        "repairs-for-itself",
        "a heartbeat helps its sender only, if it is first",
        MOVING,
        |size, sought| {
            explore(size, sought, |model| {
                mourning(model);
                model.rules.beat_repairs_for_others = false;
            })
        },
    ),
    broken("unknown-untold", "who is not in line is told to wait", TOLD, |size, sought| {
        explore(size, sought, |model| model.rules.beat_tells_unknown = false)
    }),
    broken(
        "unknown-unheeded",
        "who is told that it is not in line goes on waiting",
        MOVING,
        |size, sought| explore(size, sought, |model| model.habits.enqueues_again = false),
    ),
    broken(
        "grant-untold",
        "a heartbeat does not tell of a grant (a lost push)",
        TOLD,
        |size, sought| explore(size, sought, |model| model.rules.beat_tells_granted = false),
    ),
    deadly(
        "dead-not-skipped",
        "who has not been heard of is granted the lock (redisson#3004)",
        MOVING,
        |size, sought| {
            explore(size, sought, |model| {
                mourning(model);
                model.rules.skips_dead = false;
            })
        },
    ),
    deadly("long-grants", "who waits is granted the whole TTL unheard", MOVING, |size, sought| {
        explore(size, sought, |model| {
            mourning(model);
            model.rules.short_grants = false;
        })
    }),
    broken("newcomer-first", "a newcomer takes the free lock", ORDERED, |size, sought| {
        explore(size, sought, |model| model.rules.newcomers_queue = false)
    }),
    broken(
        "deadline-from-push",
        "the deadline counts from the message",
        DEADLINE,
        |size, sought| explore(size, sought, |model| model.habits.counts_from_proof = false),
    ),
    broken(
        "telling-extends-not",
        "who asks is told of a grant that is older, and counts from the question",
        DEADLINE,
        |size, sought| explore(size, sought, |model| model.rules.telling_extends = false),
    ),
    broken(
        "stale-grant",
        "a grant is taken unseen after the wait (etcd#11456)",
        FRESH,
        |size, sought| explore(size, sought, |model| model.habits.looks_at_grant = false),
    ),
];

const fn deadly(
    variant: &'static str,
    what: &'static str,
    breaks: &'static str,
    explore: Explore,
) -> Case {
    Case::broken("line", variant, what, breaks, FOUR, explore)
}

const fn broken(
    variant: &'static str,
    what: &'static str,
    breaks: &'static str,
    explore: Explore,
) -> Case {
    Case::broken("line", variant, what, breaks, THREE, explore)
}

fn explore(size: Size, sought: Option<&'static str>, change: impl Fn(&mut Line)) -> Outcome {
    let mut model = Line {
        clients: size.attempts,
        deaths: 1,
        troubles: 1,
        rules: Default::default(),
        habits: Default::default(),
    };
    change(&mut model);
    check(model, sought)
}

fn mourning(model: &mut Line) {
    model.deaths = 3;
    model.troubles = 0;
}
