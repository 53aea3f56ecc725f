//! Every case, on one member and on three.

use std::sync::Arc;

use leasehold_testkit::conformance;
use leasehold_testkit::stores::etcd::EtcdUnderTest;

#[test]
fn one_member_passes_every_case() {
    conformance::run_all(Arc::new(EtcdUnderTest::start(1)));
}

#[test]
fn three_members_pass_every_case() {
    conformance::run_all(Arc::new(EtcdUnderTest::start(3)));
}
