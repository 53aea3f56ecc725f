//! What is explored of the model, and what it must not do without.

use super::{COMPLETED, EXCLUSIVE, Quorum, RENEWED, UNIQUE};
use crate::catalogue::{Case, Size, Subject};

const SMALL: Size = Size::new(3, 2);
const THREE: Size = Size::new(3, 3);
const FIVE: Size = Size::new(5, 2);

/// All cases.
pub const CASES: &[Case] = &[
    Case::holds("tokens", "two trips; keys vanish at any time", THREE, Subject::Quorum(|_| {})),
    Case::holds("guesses", "one trip with a guess, else two", THREE, Subject::Quorum(guessing)),
    Case::holds(
        "wide-guesses",
        "guesses far and near",
        SMALL,
        Subject::Quorum(|model| model.guesses = &[Some(1), Some(2), Some(3)]),
    ),
    Case::holds(
        "renewals",
        "two trips, and leases are renewed",
        THREE,
        Subject::Quorum(|model| model.renewals = true),
    ),
    Case::holds("holders", "keys stand under their holders", THREE, Subject::Quorum(holding)),
    Case::holds("five", "five nodes, with guesses", FIVE, Subject::Quorum(guessing)),
    Case::holds(
        "five-renewals",
        "five nodes, with renewals",
        FIVE,
        Subject::Quorum(|model| model.renewals = true),
    ),
    Case::breaks(
        EXCLUSIVE,
        "no-lock-check",
        "a token is stored without looking whose the lock is",
        SMALL,
        Subject::Quorum(|model| {
            holding(model);
            model.rules.store_checks_lock = false;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "not-strict",
        "a token is stored over an equal one (`<=` for `<`)",
        SMALL,
        Subject::Quorum(|model| {
            guessing(model);
            model.rules.strictly_newer = false;
        }),
    ),
    Case::breaks(
        RENEWED,
        "renewal-on-lock-alone",
        "a renewal looks at the lock, not at the token",
        SMALL,
        Subject::Quorum(|model| {
            model.renewals = true;
            model.rules.renewal_checks_token = false;
        }),
    ),
    Case::breaks(
        RENEWED,
        "renewal-recreates",
        "a renewal sets a key that is gone (RedLock.net#48)",
        SMALL,
        Subject::Quorum(|model| {
            model.renewals = true;
            model.rules.renewal_checks_token = false;
            model.rules.renewal_recreates = true;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "owner-reused",
        "a client's second attempt has the owner of its first: tokens",
        SMALL,
        Subject::Quorum(|model| {
            guessing(model);
            model.habits.fresh_owner = false;
        }),
    ),
    Case::breaks(
        EXCLUSIVE,
        "owner-reused-undo",
        "a client's second attempt has the owner of its first: what undoes one, undoes both",
        THREE,
        Subject::Quorum(|model| {
            holding(model);
            model.habits.fresh_owner = false;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "one-trip",
        "every node counts by itself, the highest count of a majority is the token",
        THREE,
        Subject::Quorum(|model| {
            model.rules.counts_by_itself = true;
            model.habits.second_trip = false;
        }),
    ),
    Case::breaks(
        COMPLETED,
        "order-of-completion",
        "nothing is left out: this order is not promised",
        SMALL,
        Subject::Quorum(|model| {
            model.guesses = &[Some(1), Some(2)];
            model.watch_completion = true;
        }),
    ),
];

fn guessing(model: &mut Quorum) {
    model.guesses = &[None, Some(1)];
}

fn holding(model: &mut Quorum) {
    model.bounded = true;
}
