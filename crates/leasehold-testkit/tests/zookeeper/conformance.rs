//! Every case of the suite, on one server and on three.

use std::sync::Arc;

use leasehold_testkit::conformance;
use leasehold_testkit::stores::zookeeper::ZookeeperUnderTest;

#[test]
fn conforms_on_one_server() {
    conformance::run_all(Arc::new(ZookeeperUnderTest::alone()));
}

#[test]
fn conforms_on_three_servers() {
    conformance::run_all(Arc::new(ZookeeperUnderTest::ensemble()));
}
