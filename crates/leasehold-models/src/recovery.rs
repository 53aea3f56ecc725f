//! Nodes that forget: the quorum of [`quorum`](crate::quorum), in which nodes lose all their
//! data, come back without their marker or with older data, and are brought back by a recovery (or are not, and
//! break what was promised); and clients that do not have the same list of nodes.

use crate::catalogue::{Case, Size, Subject};
use crate::quorum::{EXCLUSIVE, Quorum, UNIQUE};

const TWO: Size = Size::new(3, 2);

/// All cases.
pub const CASES: &[Case] = &[
    Case::holds(
        "tokens",
        "two losses of data, and recoveries; keys vanish at any time",
        TWO,
        Subject::Recovery(|model| model.wipes = 2),
    ),
    Case::holds(
        "guesses",
        "a loss of data, with guesses",
        TWO,
        Subject::Recovery(|model| model.guesses = &[Some(1), Some(2)]),
    ),
    Case::holds(
        "holders",
        "a loss; keys stand under their holders, one of whom renews",
        TWO,
        Subject::Recovery(holding),
    ),
    Case::holds(
        "two-losses",
        "two losses; keys stand under their holders",
        TWO,
        Subject::Recovery(|model| {
            model.bounded = true;
            model.wipes = 2;
        }),
    ),
    Case::holds(
        "two-losses-renewed",
        "two losses; keys stand under their holders, one of whom renews",
        TWO,
        Subject::Recovery(|model| {
            holding(model);
            model.wipes = 2;
        }),
    )
    .by_hand(),
    Case::holds(
        "older-data",
        "a node is restarted with older data, twice; keys vanish at any time",
        TWO,
        Subject::Recovery(|model| {
            model.wipes = 2;
            model.goes_back = true;
        }),
    ),
    Case::holds(
        "older-data-holders",
        "a node is restarted with older data; keys stand under their holders, one of whom renews",
        TWO,
        Subject::Recovery(|model| {
            holding(model);
            model.goes_back = true;
        }),
    ),
    Case::holds(
        "lists",
        "a client with another list of nodes is refused",
        Size::new(3, 3),
        Subject::Recovery(|model| {
            model.wipes = 0;
            model.bounded = true;
            model.two_lists = true;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "no-marker",
        "a node that forgot everything goes on",
        TWO,
        Subject::Recovery(|model| model.rules.marker = false),
    ),
    Case::breaks(
        UNIQUE,
        "delayed-restart",
        "it goes on when the longest TTL has passed",
        TWO,
        Subject::Recovery(|model| {
            model.bounded = true;
            model.rules.marker = false;
            model.habits.delayed_restart = true;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "no-run-id",
        "a node that was restarted with older data votes at once: tokens",
        TWO,
        Subject::Recovery(|model| {
            model.goes_back = true;
            model.rules.run_id = false;
        }),
    ),
    Case::breaks(
        EXCLUSIVE,
        "no-run-id-holders",
        "a node that was restarted with older data votes at once: holders",
        TWO,
        Subject::Recovery(|model| {
            model.bounded = true;
            model.goes_back = true;
            model.guesses = &[Some(1), Some(2)];
            model.rules.run_id = false;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "no-seal",
        "tokens are read without a new epoch",
        TWO,
        Subject::Recovery(|model| model.rules.epoch = false),
    ),
    Case::breaks(
        EXCLUSIVE,
        "no-wait",
        "the node is readmitted at once",
        TWO,
        Subject::Recovery(|model| {
            model.bounded = true;
            model.habits.wait = false;
        }),
    ),
    Case::breaks(
        UNIQUE,
        "other-list",
        "nobody compares lists of nodes: tokens",
        TWO,
        Subject::Recovery(|model| {
            model.wipes = 0;
            model.two_lists = true;
            model.rules.list = false;
        }),
    ),
    Case::breaks(
        EXCLUSIVE,
        "other-list-holders",
        "nobody compares lists of nodes: holders",
        TWO,
        Subject::Recovery(|model| {
            model.wipes = 0;
            model.bounded = true;
            model.guesses = &[Some(1), Some(2)];
            model.two_lists = true;
            model.rules.list = false;
        }),
    ),
];

fn holding(model: &mut Quorum) {
    model.bounded = true;
    model.renewals = true;
}
