//! SQLite in a folder of its own.

use std::path::PathBuf;
use std::sync::Arc;

use leasehold::backend::Backend;
use leasehold::backend::sqlite::SqliteStore;
use leasehold::clock::Clock;
use tempfile::TempDir;

use crate::fixture::{Opening, StoreUnderTest};

/// A fresh file, removed with the store.
pub fn sqlite() -> Arc<dyn StoreUnderTest> {
    let folder = TempDir::new().expect("a temporary folder");
    Arc::new(Sqlite { path: folder.path().join("locks.db"), _folder: folder })
}

#[derive(Debug)]
struct Sqlite {
    path: PathBuf,
    _folder: TempDir,
}

impl StoreUnderTest for Sqlite {
    fn open(&self, clock: Clock) -> Opening<'_> {
        let store = SqliteStore::open(&self.path, clock).expect("a fresh database opens");
        Box::pin(async move { store as Arc<dyn Backend> })
    }
}
