//! Nodes that forget, and two lists of nodes: what holds in every state, and what each rule is
//! there for.

mod common;

common::cases! { "recovery";
    // What must hold in every state.
    tokens: "tokens",
    guesses: "guesses",
    holders: "holders",
    two_losses: "two-losses",
    lists: "lists",
    // One rule left out: each must break the property that its case names.
    no_marker: "no-marker",
    delayed_restart: "delayed-restart",
    no_seal: "no-seal",
    no_wait: "no-wait",
    other_list: "other-list",
    other_list_holders: "other-list-holders",
}
