//! The stores that the suite runs on.

use std::sync::Arc;

use leasehold::StoreKind;
use leasehold_conformance::fixture::StoreUnderTest;

pub mod etcd;
pub mod postgres;
pub mod redis;
pub mod redlock;
pub mod zookeeper;

/// A fresh store of this kind, behind a server of its own if it needs one.
///
/// # Panics
///
/// For a store that nobody registered here.
pub fn open(kind: StoreKind) -> Arc<dyn StoreUnderTest> {
    match kind {
        StoreKind::Memory => leasehold_conformance::stores::memory(),
        StoreKind::Sqlite => leasehold_conformance::stores::sqlite(),
        StoreKind::Redis => Arc::new(redis::Redis::single(&[])),
        StoreKind::Redlock => Arc::new(redlock::Redlock::start(3, &[])),
        StoreKind::Etcd => Arc::new(etcd::EtcdUnderTest::start(1)),
        StoreKind::Zookeeper => Arc::new(zookeeper::ZookeeperUnderTest::alone()),
        StoreKind::Postgres => Arc::new(postgres::PostgresStore::lease()),
        kind => panic!("register {kind:?} here"),
    }
}
