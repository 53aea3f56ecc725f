//! Nodes that forget or come back with older data, and two lists of nodes: what holds in every state, and what each rule is
//! there for.

mod common;

common::cases! { "recovery";
    // What must hold in every state.
    tokens: "tokens",
    guesses: "guesses",
    holders: "holders",
    two_losses: "two-losses",
    older_data: "older-data",
    older_data_holders: "older-data-holders",
    lists: "lists",
    // One rule left out: each must break the property that its case names.
    no_marker: "no-marker",
    delayed_restart: "delayed-restart",
    no_run_id: "no-run-id",
    no_run_id_holders: "no-run-id-holders",
    no_seal: "no-seal",
    no_wait: "no-wait",
    other_list: "other-list",
    other_list_holders: "other-list-holders",
}
