//! The small store of `docs/guide/new-store.md` passes the suite, and the page shows it as it is.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use leasehold::backend::Backend;
use leasehold::clock::Clock;
use leasehold_conformance::fixture::{Fixture, Opening, StoreUnderTest};
use leasehold_conformance::{cases, for_each_case};
use parking_lot::Mutex;

use server::Server;
use store::SmallStore;

#[expect(unreachable_pub, reason = "written as the crate that it is copied into")]
mod server;
#[expect(unreachable_pub, reason = "written as the crate that it is copied into")]
mod store;

/// A fresh server; every client opens a store of its own on it.
#[derive(Debug, Default)]
struct Small(Mutex<Option<Arc<Server>>>);

impl StoreUnderTest for Small {
    fn open(&self, clock: Clock) -> Opening<'_> {
        let server = self.0.lock().get_or_insert_with(|| Server::new(clock.clone())).clone();
        Box::pin(async move { SmallStore::new(server, clock) as Arc<dyn Backend> })
    }
}

macro_rules! case {
    ($($module:ident :: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let store: Arc<dyn StoreUnderTest> = Arc::new(Small::default());
                cases::$module::$case(&Fixture::new(store, None)).await;
            }
        )*
    };
}
for_each_case!(case);

/// What the page shows stands in the store, to the letter.
#[test]
fn the_page_shows_the_store_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/guide/new-store.md")).unwrap();
    let code = include_str!("store.rs").to_owned() + include_str!("server.rs");
    let blocks: Vec<_> = page.split("```rust\n").skip(1).collect();
    assert!(blocks.len() > 4, "the page has its pieces of code");
    for block in blocks {
        let block = block.split("```").next().unwrap();
        assert!(code.contains(block), "this is not in the store:\n{block}");
    }
}
