//! Every case on every store.

#![cfg(feature = "suite")]

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

/// A module of tests for each store that costs nothing to start. The others run all cases
/// on one server, in a file of tests of their own. The match has no default arm: a store
/// that is in neither list does not build.
macro_rules! suite {
    ($($kind:ident as $store:ident),*; elsewhere: $($elsewhere:ident in $file:literal),*) => {
        $(mod $store {
            use super::*;
            const KIND: StoreKind = StoreKind::$kind;
            for_each_case!(case);
        })*

        const _EVERY_STORE_IS_TRIED: fn(StoreKind) = |kind| match kind {
            $(StoreKind::$kind => {})*
            $(StoreKind::$elsewhere => {
                // The file must exist.
                let _ = include_str!($file);
            })*
        };
    };
}

suite!(
    Memory as memory,
    Sqlite as sqlite;
    elsewhere:
        Redis in "redis/main.rs",
        Redlock in "redlock/main.rs",
        Etcd in "etcd/main.rs",
        Postgres in "postgres/main.rs",
        Zookeeper in "zookeeper/main.rs"
);
