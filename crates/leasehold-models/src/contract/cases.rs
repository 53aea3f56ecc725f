//! What is explored of the model, and what it must not do without.

use super::{EXCLUSIVE, FINAL, FRESH, LEFT_BEHIND, OWN_KEY, TRUTH};
use crate::catalogue::{Case, Size, Subject};

const ONE: Size = Size::new(1, 1);

/// All cases.
pub const CASES: &[Case] = &[
    Case::holds(
        "lease",
        "one acquisition; three answers are lost or late",
        ONE,
        Subject::Contract(|_| {}),
    ),
    Case::breaks(
        EXCLUSIVE,
        "deadline-from-answer",
        "the deadline counts from the answer (redsync#72)",
        ONE,
        Subject::Contract(|habits| habits.counts_from_request = false),
    ),
    Case::breaks(
        EXCLUSIVE,
        "no-timer",
        "no loss fires at the deadline",
        ONE,
        Subject::Contract(|habits| habits.loss_fires = false),
    ),
    Case::breaks(
        FINAL,
        "loss-not-final",
        "a late renewal revives a lost lease",
        ONE,
        Subject::Contract(|habits| habits.loss_is_final = false),
    ),
    Case::breaks(
        FRESH,
        "stale-grant",
        "a grant is handed out unseen (node-redlock#296)",
        ONE,
        Subject::Contract(|habits| habits.looks_at_grant = false),
    ),
    Case::breaks(
        OWN_KEY,
        "no-settle",
        "a claim without an answer is just sent again (redis-py)",
        ONE,
        Subject::Contract(|habits| habits.settles = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "no-tombstone",
        "settling leaves no tombstone",
        ONE,
        Subject::Contract(|habits| habits.tombstone_when_settled = false),
    ),
    Case::breaks(
        OWN_KEY,
        "owner-reused",
        "an owner with a tombstone asks again",
        ONE,
        Subject::Contract(|habits| habits.fresh_owner = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "no-undo",
        "a cancelled acquisition is forgotten",
        ONE,
        Subject::Contract(|habits| habits.undoes = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "undone-without-tombstone",
        "what was found and undone leaves no tombstone",
        ONE,
        Subject::Contract(|habits| habits.tombstone_when_undone = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "undone-once",
        "what is found again after it was undone is left there",
        ONE,
        Subject::Contract(|habits| habits.undoes_again = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "stray-without-tombstone",
        "a second claim on its way is forgotten on release",
        ONE,
        Subject::Contract(|habits| habits.tombstone_when_stray = false),
    ),
    Case::breaks(
        OWN_KEY,
        "undo-out-of-order",
        "a late grant is undone beside the next claim",
        ONE,
        Subject::Contract(|habits| habits.starts_over_in_order = false),
    ),
    Case::breaks(
        OWN_KEY,
        "undo-gives-up",
        "a late grant that cannot be undone is left to the background",
        ONE,
        Subject::Contract(|habits| habits.insists_on_order = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "leave-forgets",
        "who leaves the queue is not taken out of the lock it was just given",
        ONE,
        Subject::Contract(|habits| habits.leaving_releases = false),
    ),
    Case::breaks(
        LEFT_BEHIND,
        "renewal-retakes",
        "a renewal takes a lock that is free (RedLock.net#48)",
        ONE,
        Subject::Contract(|habits| habits.renewal_retakes = true),
    ),
    Case::breaks(
        TRUTH,
        "release-forgets",
        "a release that is sent again forgets the first",
        ONE,
        Subject::Contract(|habits| habits.release_remembers = false),
    ),
];
