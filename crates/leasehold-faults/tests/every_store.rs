//! Every store runs the suite.

#![cfg(feature = "suite")]

use leasehold::StoreKind;

/// The match has no default arm: a store that is in neither list does not build.
macro_rules! suite {
    ($($kind:ident),*; elsewhere: $($elsewhere:ident in $file:literal),*) => {
        const _EVERY_STORE_IS_TRIED: fn(StoreKind) = |kind| match kind {
            $(StoreKind::$kind => {})*
            $(StoreKind::$elsewhere => {
                // The file must exist.
                let _ = include_str!($file);
            })*
        };
    };
}

// Those without a server are in the tests of `leasehold-conformance`.
suite!(
    Memory, Sqlite;
    elsewhere:
        Redis in "redis/conformance.rs",
        Redlock in "redlock/conformance.rs",
        Etcd in "etcd/conformance.rs",
        Postgres in "postgres/conformance.rs",
        Zookeeper in "zookeeper/conformance.rs"
);
