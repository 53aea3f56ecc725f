//! Every case on every store.

use leasehold::StoreKind;
use leasehold_testkit::world::World;
use leasehold_testkit::{conformance, for_each_case, stores};

macro_rules! case {
    ($($module:ident :: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let world = World::new(stores::open(KIND), None);
                conformance::$module::$case(&world).await;
            }
        )*
    };
}

/// A module of tests for each store. The match has no default arm: a store without
/// a module does not build.
macro_rules! suite {
    ($($kind:ident as $store:ident),*) => {
        $(mod $store {
            use super::*;
            const KIND: StoreKind = StoreKind::$kind;
            for_each_case!(case);
        })*

        const _EVERY_STORE_HAS_ITS_MODULE: fn(StoreKind) = |kind| match kind {
            $(StoreKind::$kind => {})*
        };
    };
}

suite!(Memory as memory, Sqlite as sqlite);
