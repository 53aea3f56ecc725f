//! What is explored of the model, and what it must not do without.

use super::{Contract, EXCLUSIVE, FINAL, FRESH, Habits, LEFT_BEHIND, OWN_KEY, TRUTH};
use crate::catalogue::{Case, Explore, Size};
use crate::check::{Outcome, check};

const ONE: Size = Size::new(1, 1);

/// All cases.
pub const CASES: &[Case] = &[
    Case::sound(
        "contract",
        "lease",
        "one acquisition; three answers are lost or late",
        ONE,
        |_, sought| explore(sought, |_| {}),
    ),
    broken(
        "deadline-from-answer",
        "the deadline counts from the answer (redsync#72)",
        EXCLUSIVE,
        |_, sought| explore(sought, |habits| habits.counts_from_request = false),
    ),
    broken("no-timer", "no loss fires at the deadline", EXCLUSIVE, |_, sought| {
        explore(sought, |habits| habits.loss_fires = false)
    }),
    broken("loss-not-final", "a late renewal revives a lost lease", FINAL, |_, sought| {
        explore(sought, |habits| habits.loss_is_final = false)
    }),
    broken("stale-grant", "a grant is handed out unseen (node-redlock#296)", FRESH, |_, sought| {
        explore(sought, |habits| habits.looks_at_grant = false)
    }),
    broken(
        "no-settle",
        "a claim without an answer is just sent again (redis-py)",
        OWN_KEY,
        |_, sought| explore(sought, |habits| habits.settles = false),
    ),
    broken("no-bar", "settling bars nobody", LEFT_BEHIND, |_, sought| {
        explore(sought, |habits| habits.settling_bars = false)
    }),
    broken("owner-reused", "an owner that was barred asks again", OWN_KEY, |_, sought| {
        explore(sought, |habits| habits.fresh_owner = false)
    }),
    broken("no-undo", "a cancelled acquisition is forgotten", LEFT_BEHIND, |_, sought| {
        explore(sought, |habits| habits.undoes = false)
    }),
    broken(
        "undone-not-barred",
        "what was found and undone is not barred",
        LEFT_BEHIND,
        |_, sought| explore(sought, |habits| habits.bars_undone = false),
    ),
    broken(
        "undone-once",
        "what is found again after it was undone is left there",
        LEFT_BEHIND,
        |_, sought| explore(sought, |habits| habits.undoes_again = false),
    ),
    broken(
        "stray-not-barred",
        "a second claim on its way is forgotten on release",
        LEFT_BEHIND,
        |_, sought| explore(sought, |habits| habits.bars_stray = false),
    ),
    broken(
        "undo-out-of-order",
        "a late grant is undone beside the next claim",
        OWN_KEY,
        |_, sought| explore(sought, |habits| habits.starts_over_in_order = false),
    ),
    broken(
        "undo-gives-up",
        "a late grant that cannot be undone is left to the background",
        OWN_KEY,
        |_, sought| explore(sought, |habits| habits.insists_on_order = false),
    ),
    broken(
        "leave-forgets",
        "who leaves the line is not taken out of the lock it was just given",
        LEFT_BEHIND,
        |_, sought| explore(sought, |habits| habits.leaving_releases = false),
    ),
    broken(
        "renewal-retakes",
        "a renewal takes a lock that is free (RedLock.net#48)",
        LEFT_BEHIND,
        |_, sought| explore(sought, |habits| habits.renewal_retakes = true),
    ),
    broken(
        "release-forgets",
        "a release that is sent again forgets the first",
        TRUTH,
        |_, sought| explore(sought, |habits| habits.release_remembers = false),
    ),
];

const fn broken(
    variant: &'static str,
    what: &'static str,
    breaks: &'static str,
    explore: Explore,
) -> Case {
    Case::broken("contract", variant, what, breaks, ONE, explore)
}

fn explore(sought: Option<&'static str>, change: impl Fn(&mut Habits)) -> Outcome {
    let mut model = Contract { losses: 3, habits: Habits::default() };
    change(&mut model.habits);
    check(model, sought)
}
