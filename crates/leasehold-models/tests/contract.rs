//! The contract of a lease: what holds in every state, and what each rule is there for.

mod common;

common::cases! { "contract";
    // What must hold in every state.
    lease: "lease",
    // One rule left out: each must break the property that its case names.
    deadline_from_answer: "deadline-from-answer",
    no_timer: "no-timer",
    loss_not_final: "loss-not-final",
    stale_grant: "stale-grant",
    no_settle: "no-settle",
    no_tombstone: "no-tombstone",
    owner_reused: "owner-reused",
    no_undo: "no-undo",
    undone_without_tombstone: "undone-without-tombstone",
    undone_once: "undone-once",
    stray_without_tombstone: "stray-without-tombstone",
    undo_out_of_order: "undo-out-of-order",
    undo_gives_up: "undo-gives-up",
    leave_forgets: "leave-forgets",
    renewal_retakes: "renewal-retakes",
    release_forgets: "release-forgets",
}
