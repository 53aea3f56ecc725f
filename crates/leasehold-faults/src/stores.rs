//! The stores that the suite runs on.

use std::sync::Arc;

use leasehold::StoreKind;
use leasehold_conformance::fixture::StoreUnderTest;

pub mod etcd;
pub mod postgres;
pub mod redis;
pub mod redlock;
pub mod zookeeper;

/// A fresh store of this kind, behind a server of its own if it needs one. There is no
/// default arm: a store that nobody registers here does not build.
pub fn open(kind: StoreKind) -> Arc<dyn StoreUnderTest> {
    match kind {
        StoreKind::Memory => leasehold_conformance::stores::memory(),
        StoreKind::Sqlite => leasehold_conformance::stores::sqlite(),
        StoreKind::Redis => Arc::new(redis::Redis::single(&[])),
        StoreKind::Redlock => Arc::new(redlock::Redlock::start(3, &[])),
        StoreKind::Etcd => Arc::new(etcd::EtcdUnderTest::start(1)),
        StoreKind::Zookeeper => Arc::new(zookeeper::ZookeeperUnderTest::alone()),
        StoreKind::Postgres => Arc::new(postgres::PostgresStore::lease()),
    }
}
