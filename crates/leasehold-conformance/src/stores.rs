//! The stores that need no server.

use std::sync::Arc;

use leasehold::backend::Backend;
use leasehold::backend::memory::MemoryStore;
use leasehold::clock::Clock;
use parking_lot::Mutex;

use crate::fixture::{Opening, StoreUnderTest};

#[cfg(feature = "sqlite")]
pub use sqlite::sqlite;

#[cfg(feature = "sqlite")]
mod sqlite;

/// A fresh store in memory.
pub fn memory() -> Arc<dyn StoreUnderTest> {
    Arc::new(Memory::default())
}

#[derive(Debug, Default)]
struct Memory(Mutex<Option<Arc<MemoryStore>>>);

impl StoreUnderTest for Memory {
    fn open(&self, clock: Clock) -> Opening<'_> {
        let store = self.0.lock().get_or_insert_with(|| MemoryStore::new(clock)).clone();
        Box::pin(async move { store as Arc<dyn Backend> })
    }
}
