//! Every case, in both modes.

use std::sync::Arc;

use leasehold_conformance::cases::run_all;
use leasehold_faults::stores::postgres::PostgresStore;

#[test]
fn every_case_in_lease_mode() {
    run_all(Arc::new(PostgresStore::lease()));
}

#[test]
fn every_case_in_session_mode() {
    run_all(Arc::new(PostgresStore::session()));
}
