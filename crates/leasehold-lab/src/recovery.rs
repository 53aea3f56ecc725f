//! Nodes that forget: the quorum of [`quorum`](crate::quorum), in which nodes lose all their
//! data, come back without their marker, and are brought back by a recovery (or are not, and
//! break what was promised); and clients that do not have the same list of nodes.

use crate::catalogue::{Case, Size};
use crate::check::{Outcome, check};
use crate::quorum::{EXCLUSIVE, Quorum, UNIQUE};

const MODEL: &str = "recovery";
const TWO: Size = Size::new(3, 2);

/// All cases.
pub const CASES: &[Case] = &[
    Case::sound(
        MODEL,
        "tokens",
        "two losses of data, and recoveries; keys vanish at any time",
        TWO,
        |size, sought| exhaust(size, sought, |model| model.wipes = 2),
    ),
    Case::sound(MODEL, "guesses", "a loss of data, with guesses", TWO, |size, sought| {
        exhaust(size, sought, |model| model.guesses = &[Some(1), Some(2)])
    }),
    Case::sound(
        MODEL,
        "holders",
        "a loss; keys stand under their holders, one of whom renews",
        TWO,
        |size, sought| exhaust(size, sought, holding),
    ),
    Case::sound(
        MODEL,
        "two-losses",
        "two losses; keys stand under their holders",
        TWO,
        |size, sought| {
            exhaust(size, sought, |model| {
                model.bounded = true;
                model.wipes = 2;
            })
        },
    ),
    Case::sound(
        MODEL,
        "two-losses-renewed",
        "two losses; keys stand under their holders, one of whom renews",
        TWO,
        |size, sought| {
            exhaust(size, sought, |model| {
                holding(model);
                model.wipes = 2;
            })
        },
    ),
    Case::sound(
        MODEL,
        "lists",
        "a client with another list of nodes is refused",
        Size::new(3, 3),
        |size, sought| {
            exhaust(size, sought, |model| {
                model.wipes = 0;
                model.bounded = true;
                model.two_lists = true;
            })
        },
    ),
    Case::broken(
        MODEL,
        "no-marker",
        "a node that forgot everything goes on",
        UNIQUE,
        TWO,
        |size, sought| explore(size, sought, |model| model.rules.marker = false),
    ),
    Case::broken(
        MODEL,
        "delayed-restart",
        "it goes on when the longest TTL has passed",
        UNIQUE,
        TWO,
        |size, sought| {
            explore(size, sought, |model| {
                model.bounded = true;
                model.rules.marker = false;
                model.habits.delayed_restart = true;
            })
        },
    ),
    Case::broken(
        MODEL,
        "no-seal",
        "tokens are read without a new epoch",
        UNIQUE,
        TWO,
        |size, sought| explore(size, sought, |model| model.rules.epoch = false),
    ),
    Case::broken(
        MODEL,
        "no-wait",
        "the node is readmitted at once",
        EXCLUSIVE,
        TWO,
        |size, sought| {
            explore(size, sought, |model| {
                model.bounded = true;
                model.habits.wait = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "other-list",
        "nobody compares lists of nodes: tokens",
        UNIQUE,
        TWO,
        |size, sought| {
            explore(size, sought, |model| {
                model.wipes = 0;
                model.two_lists = true;
                model.rules.list = false;
            })
        },
    ),
    Case::broken(
        MODEL,
        "other-list-holders",
        "nobody compares lists of nodes: holders",
        EXCLUSIVE,
        TWO,
        |size, sought| {
            explore(size, sought, |model| {
                model.wipes = 0;
                model.bounded = true;
                model.guesses = &[Some(1), Some(2)];
                model.two_lists = true;
                model.rules.list = false;
            })
        },
    ),
];

fn explore(size: Size, sought: Option<&'static str>, change: impl Fn(&mut Quorum)) -> Outcome {
    let mut model = Quorum::new(size.nodes, size.attempts);
    model.wipes = 1;
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

fn holding(model: &mut Quorum) {
    model.bounded = true;
    model.renewals = true;
}
