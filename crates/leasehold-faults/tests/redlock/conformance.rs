//! Every case of the contract, on three and on five nodes.

use std::sync::Arc;

use leasehold_conformance::cases::run_all;
use leasehold_faults::stores::redlock::Redlock;

#[test]
fn three_nodes() {
    run_all(Arc::new(Redlock::start(3, &[])));
}

#[test]
fn five_nodes_with_append_only_files() {
    run_all(Arc::new(Redlock::start(5, &["--appendonly", "yes"])));
}
