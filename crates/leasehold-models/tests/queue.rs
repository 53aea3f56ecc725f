//! Waiting in the queue: what holds in every state, and what each rule is there for.

mod common;

common::cases! { "queue";
    // What must hold in every state.
    troubles: "troubles",
    deaths: "deaths",
    // One rule left out: each must break the property that its case names.
    no_repair: "no-repair",
    repairs_for_itself: "repairs-for-itself",
    unknown_untold: "unknown-untold",
    unknown_unheeded: "unknown-unheeded",
    grant_untold: "grant-untold",
    dead_not_skipped: "dead-not-skipped",
    long_grants: "long-grants",
    newcomer_first: "newcomer-first",
    deadline_from_push: "deadline-from-push",
    telling_extends_not: "telling-extends-not",
    stale_grant: "stale-grant",
}
