//! Tokens from a quorum: what holds in every state, and what each rule is there for.

mod common;

common::cases! { "quorum";
    // What must hold in every state.
    tokens: "tokens",
    guesses: "guesses",
    wide_guesses: "wide-guesses",
    renewals: "renewals",
    holders: "holders",
    five: "five",
    five_renewals: "five-renewals",
    // One rule left out: each must break the property that its case names.
    no_lock_check: "no-lock-check",
    not_strict: "not-strict",
    renewal_on_lock_alone: "renewal-on-lock-alone",
    renewal_recreates: "renewal-recreates",
    owner_reused: "owner-reused",
    owner_reused_undo: "owner-reused-undo",
    one_trip: "one-trip",
    order_of_completion: "order-of-completion",
}
