//! Every case, in both modes.

use std::sync::Arc;

use leasehold_testkit::conformance::run_all;
use leasehold_testkit::stores::postgres::PostgresStore;

#[test]
fn every_case_in_lease_mode() {
    run_all(Arc::new(PostgresStore::lease()));
}

#[test]
fn every_case_in_session_mode() {
    run_all(Arc::new(PostgresStore::session()));
}
