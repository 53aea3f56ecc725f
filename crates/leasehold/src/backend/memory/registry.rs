//! The named stores of this process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

use super::MemoryStore;

static STORES: LazyLock<Mutex<HashMap<String, Weak<MemoryStore>>>> = LazyLock::new(Mutex::default);

pub(super) fn find_or_create(
    name: &str,
    create: impl FnOnce() -> Arc<MemoryStore>,
) -> Arc<MemoryStore> {
    let mut stores = STORES.lock();
    stores.retain(|_, store| store.strong_count() > 0);
    if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
        return store;
    }
    let store = create();
    stores.insert(name.to_owned(), Arc::downgrade(&store));
    store
}
