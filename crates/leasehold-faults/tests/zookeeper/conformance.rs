//! Every case of the suite, on one server and on three.

use std::sync::Arc;

use leasehold_conformance::cases::run_all;
use leasehold_faults::stores::zookeeper::ZookeeperUnderTest;

#[test]
fn conforms_on_one_server() {
    run_all(Arc::new(ZookeeperUnderTest::alone()));
}

#[test]
fn conforms_on_three_servers() {
    run_all(Arc::new(ZookeeperUnderTest::ensemble()));
}
