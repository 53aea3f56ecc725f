//! The stores that the suite runs on.

use std::path::PathBuf;
use std::sync::Arc;

use leasehold::StoreKind;
use leasehold::backend::Backend;
use leasehold::backend::memory::MemoryStore;
use leasehold::backend::sqlite::SqliteStore;
use leasehold::clock::Clock;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::world::{Opening, StoreUnderTest};

pub mod etcd;
pub mod postgres;
pub mod redis;
pub mod redlock;
pub mod zookeeper;

/// A fresh store of this kind, behind a server of its own if it needs one. There is no
/// default arm: a store that nobody registers here does not build.
pub fn open(kind: StoreKind) -> Arc<dyn StoreUnderTest> {
    match kind {
        StoreKind::Memory => Arc::new(Memory::default()),
        StoreKind::Sqlite => Arc::new(Sqlite::new()),
        StoreKind::Redis => Arc::new(redis::Redis::single(&[])),
        StoreKind::Redlock => Arc::new(redlock::Redlock::start(3, &[])),
        StoreKind::Etcd => Arc::new(etcd::EtcdUnderTest::start(1)),
        StoreKind::Zookeeper => Arc::new(zookeeper::ZookeeperUnderTest::alone()),
        StoreKind::Postgres => Arc::new(postgres::PostgresStore::lease()),
    }
}

#[derive(Debug, Default)]
struct Memory(Mutex<Option<Arc<MemoryStore>>>);

impl StoreUnderTest for Memory {
    fn open(&self, clock: Clock) -> Opening<'_> {
        let store = self.0.lock().get_or_insert_with(|| MemoryStore::new(clock)).clone();
        Box::pin(async move { store as Arc<dyn Backend> })
    }
}

#[derive(Debug)]
struct Sqlite {
    path: PathBuf,
    _folder: TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        Self { path: folder.path().join("locks.db"), _folder: folder }
    }
}

impl StoreUnderTest for Sqlite {
    fn open(&self, clock: Clock) -> Opening<'_> {
        let store = SqliteStore::open(&self.path, clock).expect("a fresh database opens");
        Box::pin(async move { store as Arc<dyn Backend> })
    }
}
