//! Every store runs the suite.

#![cfg(feature = "suite")]

use leasehold::StoreKind;

/// Where a store runs it.
macro_rules! suite {
    ($($kind:ident),*; elsewhere: $($elsewhere:ident in $file:literal),*) => {
        const TRIED: &[StoreKind] = &[$(StoreKind::$kind,)* $(StoreKind::$elsewhere,)*];
        // The files must exist.
        $(const _: &str = include_str!($file);)*
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

#[test]
fn every_store_is_tried() {
    let untried: Vec<_> = StoreKind::ALL.iter().filter(|kind| !TRIED.contains(kind)).collect();
    assert!(untried.is_empty(), "{untried:?} run no suite");
}
