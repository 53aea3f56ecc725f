//! What is explored of the model, and what it must not do without.

use super::{COMPLETED, EXCLUSIVE, Quorum, RENEWED, UNIQUE};
use crate::catalogue::{Case, Size};
use crate::check::{Outcome, check};

const MODEL: &str = "quorum";
const SMALL: Size = Size::new(3, 2);
const THREE: Size = Size::new(3, 3);
const FIVE: Size = Size::new(5, 2);

/// All cases.
pub const CASES: &[Case] = &[
    Case::sound(MODEL, "tokens", "two trips; keys vanish at any time", THREE, |size, sought| {
        exhaust(size, sought, |_| {})
    }),
    Case::sound(MODEL, "guesses", "one trip with a guess, else two", THREE, |size, sought| {
        exhaust(size, sought, guessing)
    }),
    Case::sound(MODEL, "wide-guesses", "guesses far and near", SMALL, |size, sought| {
        exhaust(size, sought, |model| model.guesses = &[Some(1), Some(2), Some(3)])
    }),
    Case::sound(MODEL, "renewals", "two trips, and leases are renewed", THREE, |size, sought| {
        exhaust(size, sought, |model| model.renewals = true)
    }),
    Case::sound(MODEL, "holders", "keys stand under their holders", THREE, |size, sought| {
        exhaust(size, sought, holding)
    }),
    Case::sound(MODEL, "five", "five nodes, with guesses", FIVE, |size, sought| {
        exhaust(size, sought, guessing)
    }),
    Case::sound(MODEL, "five-renewals", "five nodes, with renewals", FIVE, |size, sought| {
        exhaust(size, sought, |model| model.renewals = true)
    }),
    Case::broken(
        MODEL,
        "no-lock-check",
        "a token is stored without looking whose the lock is",
        EXCLUSIVE,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                holding(model);
                model.rules.store_checks_lock = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "not-strict",
        "a token is stored over an equal one (`<=` for `<`)",
        UNIQUE,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                guessing(model);
                model.rules.strictly_newer = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "renewal-on-lock-alone",
        "a renewal looks at the lock, not at the token",
        RENEWED,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                model.renewals = true;
                model.rules.renewal_checks_token = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "renewal-recreates",
        "a renewal sets a key that is gone (RedLock.net#48)",
        RENEWED,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                model.renewals = true;
                model.rules.renewal_checks_token = false;
                model.rules.renewal_recreates = true;
            })
        },
    ),
    Case::broken(
        MODEL,
        "owner-reused",
        "a client's second attempt has the owner of its first: tokens",
        UNIQUE,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                guessing(model);
                model.habits.fresh_owner = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "owner-reused-undo",
        "a client's second attempt has the owner of its first: what undoes one, undoes both",
        EXCLUSIVE,
        THREE,
        |size, sought| {
            explore(size, sought, |model| {
                holding(model);
                model.habits.fresh_owner = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "one-trip",
        "every node counts by itself, the highest count of a majority is the token",
        UNIQUE,
        THREE,
        |size, sought| {
            explore(size, sought, |model| {
                model.rules.counts_by_itself = true;
                model.habits.second_trip = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "order-of-completion",
        "nothing is left out: this order is not promised",
        COMPLETED,
        SMALL,
        |size, sought| {
            explore(size, sought, |model| {
                model.guesses = &[Some(1), Some(2)];
                model.watch_completion = true;
            })
        },
    ),
];

fn explore(size: Size, sought: Option<&'static str>, change: impl Fn(&mut Quorum)) -> Outcome {
    let mut model = Quorum::new(size.nodes, size.attempts);
    change(&mut model);
    check(model, sought)
}

/// Without what can only stand in the way.
fn exhaust(size: Size, sought: Option<&'static str>, change: impl Fn(&mut Quorum)) -> Outcome {
    explore(size, sought, |model| {
        model.reduced = true;
        change(model);
    })
}

fn guessing(model: &mut Quorum) {
    model.guesses = &[None, Some(1)];
}

fn holding(model: &mut Quorum) {
    model.bounded = true;
}
