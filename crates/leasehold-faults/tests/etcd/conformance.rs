//! Every case, on one member and on three.

use std::sync::Arc;

use leasehold_conformance::cases::run_all;
use leasehold_faults::stores::etcd::EtcdUnderTest;

#[test]
fn one_member_passes_every_case() {
    run_all(Arc::new(EtcdUnderTest::start(1)));
}

#[test]
fn three_members_pass_every_case() {
    run_all(Arc::new(EtcdUnderTest::start(3)));
}
