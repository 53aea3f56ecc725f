use std::sync::Arc;
use leasehold_testkit::conformance;
use leasehold_testkit::stores::etcd::EtcdUnderTest;
use leasehold_testkit::world::World;
#[test]
fn one() {
    let wanted = std::env::var("CASE").unwrap();
    let store = Arc::new(EtcdUnderTest::start(1));
    for case in conformance::CASES.iter().filter(|c| wanted.split(',').any(|w| w == c.name)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let s2 = store.clone();
        eprintln!("case {}", case.name);
        let r = runtime.block_on(async move { tokio::time::timeout(std::time::Duration::from_secs(60), (case.run)(&World::new(s2.clone() as Arc<dyn leasehold_testkit::world::StoreUnderTest>, None))).await });
        if r.is_err() { eprintln!("{}", store.cluster.ctl(&["get", "", "--prefix"]).unwrap()); panic!("hung") }
        runtime.shutdown_background();
    }
}
